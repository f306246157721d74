"""The collector, and what the file that it made for this repository promises."""

from collections.abc import Iterator
from pathlib import Path

import gymnasium
import h5py
import jax
import numpy as np
import pytest

from collect.__main__ import choose_policies, main
from collect.rollouts import Episode, play_episode, record
from collect.sac import Actor, squash
from collect.training import Snapshot
from shared.envs import make_env

BUNDLED = Path(__file__).parents[1] / "datasets" / "mini" / "hopper-medium-expert.hdf5"
SHAPES = {
    "observations": (11,),
    "actions": (3,),
    "rewards": (),
    "next_observations": (11,),
    "terminals": (),
    "timeouts": (),
    "infos/qpos": (6,),
    "infos/qvel": (6,),
}
FACTS = ("return_mean", "return_std", "episodes", "rows", "training_steps", "seed")
ATTRIBUTES = {
    *("env_id", "total_mass", "algorithm", "policy", "command", "training_seed", "licence"),
    *(f"{package}_version" for package in ("mujoco", "gymnasium", "numpy", "jax")),
    *(f"{policy}_{fact}" for policy in ("medium", "expert") for fact in FACTS),
}
TINY = ["--steps", "600", "--random_steps", "100", "--batch_size", "8", "--evaluate_every", "200"]
TINY += ["--evaluation_episodes", "1", "--transitions", "150"]


def run_tiny(folder: Path, *options: str) -> Path:
    """A run of the whole command that takes seconds; returns its file."""
    output = folder / "tiny.hdf5"
    assert main(["hopper-medium-expert", *TINY, "--output", str(output), *options]) == 0
    return output


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny run whose snapshots are kept beside it."""
    folder = tmp_path_factory.mktemp("collect")
    return run_tiny(folder, "--work_dir", str(folder / "work"))


@pytest.fixture(params=["tiny", "bundled"])
def file(request: pytest.FixtureRequest) -> Iterator[h5py.File]:
    """The file of a tiny run, and the one in the repository."""
    path = request.getfixturevalue("tiny") if request.param == "tiny" else BUNDLED
    with h5py.File(path) as opened:
        yield opened


@pytest.fixture
def bundled() -> Iterator[h5py.File]:
    """The file in the repository."""
    with h5py.File(BUNDLED) as opened:
        yield opened


def bounds(file: h5py.File) -> list[tuple[int, int]]:
    """First row of each episode, and the row after its last one."""
    ends = np.flatnonzero(file["terminals"][:] | file["timeouts"][:]) + 1
    return list(zip([0, *ends[:-1]], ends, strict=True))


def episodes_of(file: h5py.File, policy: str) -> list[tuple[int, int]]:
    """The episodes of `medium`, which come first, or of `expert`."""
    first = int(file.attrs["medium_episodes"])
    return bounds(file)[:first] if policy == "medium" else bounds(file)[first:]


def test_layout_is_that_of_d4rls_v2_files(file: h5py.File) -> None:
    """Names, shapes, types and compression; no more and no less."""
    arrays: dict[str, h5py.Dataset] = {}
    file.visititems(lambda name, item: arrays.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    assert {name: array.shape[1:] for name, array in arrays.items()} == SHAPES
    assert len({len(array) for array in arrays.values()}) == 1
    for name, array in arrays.items():
        assert array.dtype == (bool if name in ("terminals", "timeouts") else np.float32)
        assert (array.compression, array.compression_opts, array.shuffle) == ("gzip", 9, True)
        assert np.isfinite(array[:]).all()
    assert (np.abs(file["actions"][:]) <= 1).all()


def test_attributes_say_how_the_file_was_made(file: h5py.File) -> None:
    """All of them, for the environment that steps as D4RL's."""
    assert set(file.attrs) == ATTRIBUTES
    assert file.attrs["env_id"] == "d4rl/hopper-v2"
    assert file.attrs["total_mass"] == pytest.approx(15.264999, abs=1e-6)
    assert file.attrs["command"].startswith("python -m collect hopper-medium-expert ")
    assert "/" not in file.attrs["command"]
    assert file.attrs["medium_training_steps"] < file.attrs["expert_training_steps"]
    assert file.attrs["medium_seed"] != file.attrs["expert_seed"]


def test_episodes_are_whole(file: h5py.File) -> None:
    """Each row's next observation is the next row's observation; the last row has exactly one flag."""
    terminals, timeouts = file["terminals"][:], file["timeouts"][:]
    assert not (terminals & timeouts).any()
    assert (terminals | timeouts)[-1]
    observations, next_observations = file["observations"][:], file["next_observations"][:]
    starts = []
    for begin, end in bounds(file):
        np.testing.assert_array_equal(next_observations[begin : end - 1], observations[begin + 1 : end])
        assert timeouts[end - 1] == (end - begin == 1000)
        starts.append(observations[begin])
        if end < len(observations):
            assert (next_observations[end - 1] != observations[end]).any()
    assert len(np.unique(starts, axis=0)) == len(starts)


@pytest.mark.parametrize("policy", ["medium", "expert"])
def test_figures_of_each_policy_follow_from_its_rows(file: h5py.File, policy: str) -> None:
    """Episodes, rows, mean and standard deviation of the return."""
    rewards, episodes = file["rewards"][:].astype(np.float64), episodes_of(file, policy)
    returns = [rewards[begin:end].sum() for begin, end in episodes]
    found = [len(episodes), sum(end - begin for begin, end in episodes), np.mean(returns), np.std(returns)]
    names = ("episodes", "rows", "return_mean", "return_std")
    assert found == pytest.approx([file.attrs[f"{policy}_{name}"] for name in names], rel=1e-9)


def test_stepping_again_gives_the_same_rows(file: h5py.File) -> None:
    """A row's state and action lead to its reward and next observation, up to the state's rounding to float32.

    Measured over 3,900 rows: 1.1e-6 in a next observation and 3e-7 in a reward, at most.
    """
    env = make_env("d4rl/hopper-v2")
    env.reset(seed=0)
    rows = np.random.default_rng(0).choice(len(file["rewards"]), size=min(200, len(file["rewards"])), replace=False)
    arrays = {name: file[name][:] for name in SHAPES}
    for row in rows:
        qpos, qvel = arrays["infos/qpos"][row], arrays["infos/qvel"][row]
        env.unwrapped.set_state(qpos.astype(np.float64), qvel.astype(np.float64))
        observation, reward, fell, _, _ = env.unwrapped.step(arrays["actions"][row])
        np.testing.assert_array_equal(arrays["observations"][row], np.concatenate([qpos[1:], qvel.clip(-10, 10)]))
        assert reward == pytest.approx(arrays["rewards"][row], abs=2e-6)
        assert fell == arrays["terminals"][row]
        np.testing.assert_allclose(observation, arrays["next_observations"][row], rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", ["medium", "expert"])
def test_bundled_file_has_enough_rows_of_each_policy(bundled: h5py.File, policy: str) -> None:
    """At least 25,000 that survive D4RL's reader, which drops timeout rows and the file's last row."""
    timeouts, episodes = bundled["timeouts"][:], episodes_of(bundled, policy)
    kept = sum(int((~timeouts[begin:end]).sum()) for begin, end in episodes)
    assert kept - 1 >= 25_000


def test_bundled_file_is_small() -> None:
    """It is part of the repository."""
    assert BUNDLED.stat().st_size < 6_000_000


def test_bundled_policies_are_an_expert_and_one_that_falls(bundled: h5py.File) -> None:
    """The expert is stable; the medium policy earns about a third and falls in most episodes."""
    expert, medium = bundled.attrs["expert_return_mean"], bundled.attrs["medium_return_mean"]
    assert expert >= 2500
    assert 0.3 <= medium / expert <= 0.4
    terminals = bundled["terminals"][:]
    assert np.mean([terminals[end - 1] for _, end in episodes_of(bundled, "medium")]) > 0.5


def test_a_tiny_run_records_what_was_asked_for(tiny: Path) -> None:
    """At least 150 kept rows of each policy, in whole episodes and not one episode more than needed."""
    with h5py.File(tiny) as file:
        for policy in ("medium", "expert"):
            lengths = [end - begin for begin, end in episodes_of(file, policy)]
            assert sum(lengths) - 1 >= 150
            assert sum(lengths[:-1]) - 1 < 150


def test_same_seed_same_file_and_another_seed_another(tiny: Path, tmp_path: Path) -> None:
    """Every row; nothing but the two files' own times could differ."""
    (tmp_path / "again").mkdir()
    (tmp_path / "other").mkdir()
    again, other = run_tiny(tmp_path / "again"), run_tiny(tmp_path / "other", "--seed", "1")
    with h5py.File(tiny) as first, h5py.File(again) as second, h5py.File(other) as third:
        for name in SHAPES:
            np.testing.assert_array_equal(first[name][:], second[name][:])
        assert dict(first.attrs) == dict(second.attrs)
        assert first["actions"][:10].tolist() != third["actions"][:10].tolist()


def test_a_finished_training_is_reused(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same settings, and only then."""
    work = str(tiny.parent / "work")
    monkeypatch.setattr("collect.training.update_block", None)  # training again would call it
    output = run_tiny(tmp_path, "--work_dir", work)
    with h5py.File(tiny) as first, h5py.File(output) as second:
        np.testing.assert_array_equal(first["actions"][:], second["actions"][:])
    with pytest.raises(TypeError):
        run_tiny(tmp_path, "--work_dir", work, "--seed", "1")


def test_a_failed_write_leaves_the_old_file(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one takes its place when it is complete, and leaves nothing behind when it is not."""
    output = tmp_path / "tiny.hdf5"
    output.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("collect.rollouts._write_array", fail)
    with pytest.raises(OSError, match="disk full"):
        run_tiny(tmp_path, "--work_dir", str(tiny.parent / "work"))
    assert output.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [output]


class EndsAfterThreeSteps(gymnasium.Wrapper):
    """Says that the episode ended in step 3, for the reasons it was given."""

    def __init__(self, fell: bool, timeout: bool) -> None:
        """Hopper underneath, which does not end so soon."""
        super().__init__(make_env("d4rl/hopper-v2"))
        self.reasons, self.steps = (fell, timeout), 0

    def step(self, action: np.ndarray) -> tuple:
        """Hopper's step with another end."""
        self.steps += 1
        return (*super().step(action)[:2], *(self.reasons if self.steps == 3 else (False, False)), {})


@pytest.mark.parametrize(
    ("fell", "timeout", "flag"), [(True, False, "terminals"), (False, True, "timeouts"), (True, True, "timeouts")]
)
def test_an_episode_ends_with_one_flag(fell: bool, timeout: bool, flag: str) -> None:
    """A fall in the very last step counts as a timeout, as in D4RL."""
    actor = Actor(3).init(jax.random.key(0), np.zeros(11))
    episode = play_episode(EndsAfterThreeSteps(fell, timeout), actor, np.random.default_rng(0))
    found = {name: getattr(episode, name).tolist() for name in ("terminals", "timeouts")}
    assert found == {"terminals": [False] * 3, "timeouts": [False] * 3} | {flag: [False, False, True]}


@pytest.mark.parametrize(("transitions", "episodes"), [(1997, 2), (1998, 3), (1999, 3)])
def test_rows_that_a_reader_drops_do_not_count(
    transitions: int, episodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two episodes of 1000 steps have two timeout rows, and one row may be the file's last."""
    rows = Episode(*[np.zeros(1000)] * len(Episode._fields))._replace(timeouts=np.arange(1000) == 999)
    monkeypatch.setattr("collect.rollouts.play_episode", lambda *_: rows)
    assert len(list(record(None, None, 0, transitions))) == episodes


def test_the_policy_has_a_density() -> None:
    """Over all actions, exp(log probability) adds up to 1."""
    noise = np.linspace(-6, 6, 20_001)[:, None]
    actions, log_prob = squash(np.array([0.3]), np.array([-0.5]), noise)
    assert np.trapezoid(np.exp(log_prob), actions[:, 0]) == pytest.approx(1, abs=1e-4)


def test_the_medium_policy_falls_and_comes_before_the_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the policy that stands still for a third of the return, nor one from after the expert."""
    snapshots = [
        Snapshot(1, 10.0, 1.0),
        Snapshot(2, 1000.0, 0.0),  # stands still
        Snapshot(3, 900.0, 1.0),
        Snapshot(4, 3000.0, 0.1),
        Snapshot(5, 1001.0, 1.0),  # broken again
    ]
    monkeypatch.setattr("collect.__main__._evaluate", lambda _, snapshot, __: snapshot)
    chosen = choose_policies(None, snapshots, None)
    assert {name: snapshot.step for name, snapshot in chosen.items()} == {"medium": 3, "expert": 4}


def test_where_nothing_falls_the_return_alone_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in HalfCheetah."""
    monkeypatch.setattr("collect.__main__._evaluate", lambda _, snapshot, __: snapshot)
    chosen = choose_policies(None, [Snapshot(1, 900.0, 0.0), Snapshot(2, 300.0, 0.0), Snapshot(3, 3000.0, 0.0)], None)
    assert {name: snapshot.step for name, snapshot in chosen.items()} == {"medium": 1, "expert": 3}


def test_too_short_a_training_is_answered_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what to do about it, and no file."""
    output = tmp_path / "tiny.hdf5"
    arguments = ["hopper-medium-expert", *TINY, "--steps", "200", "--output", str(output)]
    assert main(arguments) == 2
    assert "raise --steps" in capsys.readouterr().err.splitlines()[-1]
    assert not output.exists()


def test_help_explains_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Every option with a sentence and its default."""
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for option in ("--seed", "--steps", "--transitions", "--output", "--work_dir"):
        assert option in shown
    assert "(default: 250,000)" in shown
    assert "None" not in shown


@pytest.mark.parametrize("wrong", [["--steps", "0"], ["--seed", "-1"], ["--steps", "many"], ["--stepps", "9"]])
def test_unusable_options_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is made; argparse exits with 2 and names the option."""
    with pytest.raises(SystemExit, match="2"):
        main(["hopper-medium-expert", *wrong])
    assert wrong[0] in capsys.readouterr().err
