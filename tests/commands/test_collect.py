"""The collector: the files of each recipe, continuing after an interruption, and the promises of the bundled sets."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import h5py
import numpy as np
import pytest

from shared import names
from shared.commands.collect import main
from shared.commands.collecting import oracles, recording, training, writing
from shared.commands.collecting.choosing import Snapshot, choose_policies
from shared.commands.collecting.recording import EPISODES, Recorder, joined, split, spread
from shared.commands.common import ended
from shared.data import sources
from shared.data.experience import Rows
from shared.envs.registry import make_env, time_limit
from shared.errors import InputError
from shared.frameworks.twins import load_twin

TINY = ["--steps", "600", "--random_steps", "100", "--batch_size", "8", "--hidden_dim", "16", "--eval_freq", "200"]
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
SPARE = {"next_observations", "infos/qpos", "infos/qvel"}
FACTS = ("return_mean", "return_std", "episodes", "rows", "training_steps", "seed")
ATTRIBUTES = {
    *("env_id", "algorithm", "policy", "command", "training_seed", "licence"),
    *(f"{package}_version" for package in ("mujoco", "gymnasium", "numpy", "jax")),
}
OF_ROBOTS = {"total_mass"}
# If D4RL has no reference scores, the file states its own.
OF_OTHERS = {"training_settings", "ref_min_score", "ref_max_score"}


def tiny(folder: Path, name: str, *options: str) -> Path:
    """Makes a collection in seconds, sharing its training with others in the folder, and returns the file."""
    output = folder / f"{name}.hdf5"
    places = ["--work_dir", str(folder / "work"), "--output", str(output)]
    assert ended(main, [f"hopper-{name}", *TINY, *places, *options]) == 0
    return output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny training and its medium-expert dataset."""
    folder = tmp_path_factory.mktemp("collect")
    tiny(folder, "medium-expert", "--size", "150")
    return folder


# Those of scripted policies have tests of their own.
TRAINED = [name for name in names.bundled() if name.removeprefix("mini/") not in oracles.names()]
BUNDLED = {name: names.dataset_path(name) for name in TRAINED}
# It needs a training; files that are already on the disk are checked right away.
TINY_ONE = pytest.param("tiny", marks=pytest.mark.thorough)


@pytest.fixture(params=[TINY_ONE, *BUNDLED])
def file(request: pytest.FixtureRequest) -> Iterator[h5py.File]:
    """The file of a tiny collection, and those of the repository."""
    tiny_one = request.param == "tiny"
    path = request.getfixturevalue("folder") / "medium-expert.hdf5" if tiny_one else BUNDLED[request.param]
    with h5py.File(path) as opened:
        yield opened


def arrays(file: h5py.File) -> dict[str, h5py.Dataset]:
    """All arrays of a file, by name."""
    found: dict[str, h5py.Dataset] = {}
    file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return found


def bounds(file: h5py.File) -> list[tuple[int, int]]:
    """The first row of each episode, and the row after its last one."""
    ends = np.flatnonzero(file["terminals"][:] | file["timeouts"][:]) + 1
    return list(zip([0, *ends[:-1]], ends, strict=True))


def parts_of(file: h5py.File) -> dict[str, list[tuple[int, int]]]:
    """The episodes of each part of a dataset, such as `medium` and `expert`, in the order of the file."""
    found, rest = {}, bounds(file)
    for name in [part for part in ("medium", "expert", "replay", "random") if f"{part}_episodes" in file.attrs]:
        count = int(file.attrs[f"{name}_episodes"])
        found[name], rest = rest[:count], rest[count:]
    assert not rest
    return found


def is_finite(file: h5py.File) -> bool:
    """Whether its actions are finite."""
    return file["actions"].ndim == 1


def equal_files(first: Path, second: Path) -> bool:
    """Whether every byte is equal."""
    return first.read_bytes() == second.read_bytes()


# ---- files, tiny and bundled ---------------------------------------------------------------------------------------


def test_layout_is_that_of_d4rls_v2_files(file: h5py.File) -> None:
    """Names, shapes, types and compression; exactly these arrays, except those that a compact file leaves out."""
    found = arrays(file)
    with_spare = set(found) >= SPARE
    assert set(found) == set(SHAPES) - (set() if with_spare else SPARE)
    assert len({len(array) for array in found.values()}) == 1
    env = make_env(str(file.attrs["env_id"]))
    sizes = {"observations": env.observation_space.shape, "actions": env.action_space.shape}
    types = {"terminals": bool, "timeouts": bool} | ({"actions": np.int64} if is_finite(file) else {})
    if len(sizes["observations"] or ()) == 3:
        types["observations"] = bool
    for name, array in found.items():
        assert array.shape[1:] == sizes.get(name.removeprefix("next_"), array.shape[1:] if "infos" in name else ())
        assert array.dtype == types.get(name, np.float32)
        assert (array.compression, array.compression_opts, array.shuffle) == ("gzip", 9, True)
        assert np.isfinite(array[:]).all()
    if is_finite(file):
        assert set(np.unique(file["actions"][:])) == set(range(file.attrs["n_actions"]))
    else:
        assert all(env.action_space.contains(action) for action in file["actions"][:])


def test_attributes_say_how_the_file_was_made(file: h5py.File) -> None:
    """Exactly these attributes, for an environment that steps as D4RL's do and for others."""
    own = OF_ROBOTS if str(file.attrs["env_id"]).startswith("d4rl/") else OF_OTHERS
    facts = {f"{part}_{fact}" for part in parts_of(file) for fact in FACTS}
    assert set(file.attrs) >= own | ATTRIBUTES | facts | ({"n_actions"} if is_finite(file) else set())
    env_id = file.attrs["env_id"]
    others = ("CartPole-v1", "MinAtar/SpaceInvaders-v1", "Pendulum-v1")
    assert env_id in (*others, *(f"d4rl/{robot}-v2" for robot in names.ROBOTS))
    collected = file.attrs.get("source_command", file.attrs["command"])
    assert "collect " in collected
    assert "/" not in collected.replace(env_id, "")


def test_figures_of_each_part_follow_from_its_rows(file: h5py.File) -> None:
    """Episodes, rows, and the mean and standard deviation of the return."""
    rewards = file["rewards"][:].astype(np.float64)
    for part, episodes in parts_of(file).items():
        returns = [rewards[begin:end].sum() for begin, end in episodes]
        found = [len(episodes), sum(end - begin for begin, end in episodes), np.mean(returns), np.std(returns)]
        names = ("episodes", "rows", "return_mean", "return_std")
        assert found == pytest.approx([file.attrs[f"{part}_{name}"] for name in names], rel=1e-9)


def test_episodes_are_whole(file: h5py.File) -> None:
    """The last row of each has exactly one flag; each starts differently; recorded ones last until a fall or the limit.

    SpaceInvaders always starts with the same picture.
    """
    terminals, timeouts = file["terminals"][:], file["timeouts"][:]
    assert not (terminals & timeouts).any()
    assert (terminals | timeouts)[-1]
    starts = file["observations"][:][[begin for begin, _ in bounds(file)]]
    assert len(np.unique(starts, axis=0)) == (len(starts) if starts[0].ndim == 1 else 1)
    limit = time_limit(str(file.attrs["env_id"]))
    for part, episodes in parts_of(file).items():
        if part != "replay":
            assert all(timeouts[end - 1] == (end - begin == limit) for begin, end in episodes)


@pytest.mark.parametrize("file", ["mini/hopper-medium-expert"], indirect=True)
def test_stepping_again_gives_the_same_rows(file: h5py.File) -> None:
    """A row's state and action give its reward and next observation, up to the rounding of the state to float32.

    Over 3,900 rows the largest difference was 1.1e-6 in a next observation and 3e-7 in a reward.
    """
    found = {name: array[:] for name, array in arrays(file).items()}
    env = make_env("d4rl/hopper-v2")
    env.reset(seed=0)
    count = len(found["rewards"])
    for row in np.random.default_rng(0).choice(count, size=min(200, count), replace=False):
        qpos, qvel = found["infos/qpos"][row], found["infos/qvel"][row]
        env.unwrapped.set_state(qpos.astype(np.float64), qvel.astype(np.float64))
        observation, reward, fell, _, _ = env.unwrapped.step(found["actions"][row])
        np.testing.assert_array_equal(found["observations"][row], np.concatenate([qpos[1:], qvel.clip(-10, 10)]))
        assert reward == pytest.approx(found["rewards"][row], abs=2e-6)
        assert fell == found["terminals"][row]
        np.testing.assert_allclose(observation, found["next_observations"][row], rtol=0, atol=1e-5)


def test_the_bundled_sets_are_small_and_have_enough_rows() -> None:
    """They are part of the repository."""
    assert sum(path.stat().st_size for path in BUNDLED.values()) < 20_000_000
    games = {name for name in BUNDLED if name.startswith(("mini/cartpole", "mini/spaceinvaders"))}
    assert len(games) == 6
    assert sum(BUNDLED[name].stat().st_size for name in games) < 2_000_000
    for name, path in BUNDLED.items():
        with h5py.File(path) as file:
            assert len(file["rewards"]) > (9_900 if name == "mini/pendulum-replay" else 14_000)


def test_the_first_bundled_set_is_what_every_published_result_rests_on() -> None:
    """Byte for byte equal."""
    digest = hashlib.sha256(BUNDLED["mini/hopper-medium-expert"].read_bytes()).hexdigest()
    assert digest == "63c6c652f8c4e7c999da2eeaa0aa9d99ffafe42188e9a20c284bdde6ad61de62"


def test_bundled_policies_are_an_expert_and_one_of_a_third(file: h5py.File) -> None:
    """Measured by the returns in the attributes; if robots fall at all, the medium policy does in most episodes."""
    parts = parts_of(file)
    if not {"medium", "expert"} <= parts.keys() or file.attrs["expert_return_mean"] < 100:  # the tiny one, or a part
        return
    assert 0.3 <= file.attrs["medium_return_mean"] / file.attrs["expert_return_mean"] <= 0.4
    fallen = np.mean([file["terminals"][end - 1] for _, end in parts["medium"]])
    assert fallen > 0.5 or "halfcheetah" in file.attrs["env_id"]


# ---- recipes -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_as_much_is_recorded_as_was_asked_for(folder: Path) -> None:
    """At least 150 kept rows of each policy, in whole episodes, with no more episodes than needed."""
    with h5py.File(folder / "medium-expert.hdf5") as file:
        parts = parts_of(file)
    assert list(parts) == ["medium", "expert"]
    for episodes in parts.values():
        lengths = [end - begin for begin, end in episodes]
        assert sum(lengths) - 1 >= 150
        assert sum(lengths[:-1]) - 1 < 150


@pytest.mark.thorough
def test_medium_expert_is_both_one_after_the_other(folder: Path) -> None:
    """The rows are the same as if the first set had been collected alone."""
    with h5py.File(folder / "medium-expert.hdf5") as both, h5py.File(tiny(folder, "medium", "--size", "150")) as medium:
        for name in SHAPES:
            np.testing.assert_array_equal(both[name][: both.attrs["medium_rows"]], medium[name][:])
        assert both.attrs["medium_training_steps"] < both.attrs["expert_training_steps"]


@pytest.mark.thorough
def test_replays_are_what_the_agent_saw(folder: Path) -> None:
    """Full: every step; medium: those up to the medium policy."""
    paths = tiny(folder, "full-replay"), tiny(folder, "medium-replay", "--compact")
    with h5py.File(paths[0]) as full, h5py.File(paths[1]) as medium:
        assert len(full["rewards"]) == 600
        steps = int(medium.attrs["replay_training_steps"])
        with h5py.File(folder / "medium-expert.hdf5") as recorded:
            assert steps == recorded.attrs["medium_training_steps"]
        np.testing.assert_array_equal(full["observations"][:steps], medium["observations"][:])
        assert SPARE.isdisjoint(arrays(medium))


@pytest.mark.thorough
def test_random_is_a_fresh_policy_and_needs_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `--steps` says. Another seed gives another file, and Minari's set holds the same rows."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    outputs = [tmp_path / f"{seed}.hdf5" for seed in (0, 1)]
    for seed, output in enumerate(outputs):
        arguments = ["hopper-random", "--size", "100", "--seed", str(seed), "--work_dir", str(tmp_path / f"w{seed}")]
        assert ended(main, [*arguments, "--output", str(output)]) == 0
    name = "collected/hopper/random-v0"
    assert ended(main, [*arguments, "--format", "minari", "--output", name]) == 0
    assert not list(tmp_path.glob("w*/runs"))
    source = sources.read(f"minari:{name}")
    assert source.attributes == {"env_id": "d4rl/hopper-v2"}
    with h5py.File(outputs[0]) as first, h5py.File(outputs[1]) as second:
        assert first["actions"][:10].tolist() != second["actions"][:10].tolist()
        assert second.attrs["random_training_steps"] == 0
        assert 0 < second.attrs["random_return_mean"] < 100
        assert len(second["rewards"]) >= 101
        for key in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts"):
            np.testing.assert_array_equal(source.raw[key], second[key][:])


@pytest.mark.thorough
def test_either_twin_trains(tmp_path: Path) -> None:
    """A file of PyTorch's twin says so."""
    short = [*TINY[:1], "400", *TINY[2:], "--size", "30", "--framework", "torch"]
    output = tmp_path / "a.hdf5"
    assert ended(main, ["hopper-expert", *short, "--work_dir", str(tmp_path / "w"), "--output", str(output)]) == 0
    with h5py.File(output) as file:
        assert "torch_version" in file.attrs
        assert "--framework torch" in file.attrs["command"]


# ---- resuming ------------------------------------------------------------------------------------------------------


class Killed(Exception):
    """Stands in for the end of the process."""


@pytest.mark.thorough
def test_a_collection_that_was_killed_twice_gives_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once between two checkpoints, once while it recorded; finished work is not repeated."""
    twin = load_twin("jax", "sac")
    saving, playing = twin.save_checkpoint, Recorder._play
    saved, played = [], []

    def save_once(path: Path, *args: object, **kwargs: object) -> None:
        # First the run's own checkpoint, then the collection's
        if len(saved) == 2:
            raise Killed
        saved.append(path)
        saving(path, *args, **kwargs)

    def play_twice(self: Recorder, number: int) -> list[Rows]:
        if len(played) == 2:
            raise Killed
        played.append((self.seed, number))
        return playing(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(twin, "save_checkpoint", save_once)
        with pytest.raises(Killed):
            tiny(tmp_path, "medium-expert", "--size", "150")
    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "_play", play_twice)
        with pytest.raises(Killed):
            tiny(tmp_path, "medium-expert", "--size", "150")

    def play_on(self: Recorder, number: int) -> list[Rows]:
        assert (self.seed, number) not in played
        return playing(self, number)

    monkeypatch.setattr(Recorder, "_play", play_on)
    first = [path.name for path in (tmp_path / "work" / "runs").iterdir()]
    assert len(first) == 2
    output = tiny(tmp_path, "medium-expert", "--size", "150")
    assert equal_files(output, folder / "medium-expert.hdf5")
    assert [path.name for path in (tmp_path / "work" / "runs").iterdir()] == first


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings that `train` reads."""

    max_timesteps: int = 30
    batch_size: int = 8
    load_model: str = ""
    runs_path: str = ""
    checkpoints_path: str | None = None


def test_a_training_goes_on_from_its_last_checkpoint_or_not_at_all(tmp_path: Path) -> None:
    """A longer one continues there, a shorter one uses its beginning, and other settings are refused in one line."""
    asked = []

    def run(config: Config) -> None:
        asked.append(config.load_model)
        for folder, name in (("checkpoints", "checkpoint_{}.pt"), ("runs", "config.yaml")):
            place = tmp_path / folder / f"run{len(asked)}"
            place.mkdir(parents=True)
            for step in (20, 30) if len(asked) == 1 else (40,):
                (place / name.format(step)).write_text("batch_size: 8\nmax_timesteps: 1\n")

    twin = SimpleNamespace(train=run)
    assert list(training.train(twin, "sac", Config(), tmp_path)) == [20, 30]
    assert list(training.train(twin, "sac", Config(max_timesteps=20), tmp_path)) == [20]
    assert list(training.train(twin, "sac", Config(max_timesteps=40), tmp_path)) == [20, 30, 40]
    assert asked == ["", str(tmp_path / "checkpoints" / "run1" / "checkpoint_30.pt")]
    with pytest.raises(InputError, match="holds a training with batch_size 8: name another --work_dir"):
        training.train(twin, "sac", Config(batch_size=9), tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file replaces it only when it is complete, and a failure leaves nothing behind."""
    output = tmp_path / "medium.hdf5"
    output.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(writing, "_write_array", fail)
    with pytest.raises(OSError, match="disk full"):
        writing.write_arrays(output, {"rewards": np.zeros(3)}, {})
    assert output.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [output]


# ---- episodes ------------------------------------------------------------------------------------------------------


class EndsAfterThreeSteps(gymnasium.Wrapper):
    """Ends the episode every third step, for the given reasons."""

    def __init__(self, fell: bool, timeout: bool) -> None:
        """Wraps Hopper, which does not end so soon."""
        super().__init__(make_env("d4rl/hopper-v2"))
        self.reasons, self.steps = (fell, timeout), 0

    def step(self, action: np.ndarray) -> tuple:
        """Hopper's step with the given end."""
        self.steps += 1
        return (*super().step(action)[:2], *(self.reasons if self.steps % 3 == 0 else (False, False)), {})


def wobble(observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Small random actions."""
    return 0.1 * rng.standard_normal((len(observations), 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("fell", "timeout", "flag"), [(True, False, "terminals"), (False, True, "timeouts"), (True, True, "timeouts")]
)
def test_an_episode_ends_with_one_flag(
    fell: bool, timeout: bool, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fall in the very last step counts as a timeout, as in D4RL."""
    monkeypatch.setattr("shared.envs.stepping.make_env", lambda *_: EndsAfterThreeSteps(fell, timeout))
    episodes = Recorder("d4rl/hopper-v2", lambda: wobble, 0, tmp_path).part(0)
    assert len(episodes) == EPISODES
    for episode in episodes:
        found = {name: getattr(episode, name).tolist() for name in ("terminals", "timeouts")}
        assert found == {"terminals": [False] * 3, "timeouts": [False] * 3} | {flag: [False, False, True]}


def test_an_episode_without_an_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment without a time limit, a cut counts as a timeout and not as a terminal."""
    monkeypatch.setattr("shared.envs.stepping.make_env", lambda *_: EndsAfterThreeSteps(False, False))
    monkeypatch.setattr(recording, "time_limit", lambda _: None)
    monkeypatch.setattr(recording, "MAX_EPISODE_STEPS", 7)
    episodes = Recorder("d4rl/hopper-v2", lambda: wobble, 0, tmp_path).part(0)
    assert len(episodes) == EPISODES
    for episode in episodes:
        assert episode.terminals.tolist() == [False] * 7
        assert episode.timeouts.tolist() == [False] * 6 + [True]


@pytest.mark.parametrize("left", [0.0, 0.9])
def test_a_part_that_was_cut_is_recorded_again(
    left: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It gives the same bytes, and a line says that it was recorded again."""
    monkeypatch.setattr("shared.envs.stepping.make_env", lambda *_: EndsAfterThreeSteps(True, False))
    recorder = Recorder("d4rl/hopper-v2", lambda: wobble, 0, tmp_path)
    recorder.part(0)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(left * len(whole))])
    assert len(recorder.part(0)) == EPISODES
    assert capsys.readouterr().err == f"{path} is damaged; its episodes are recorded again\n"
    assert path.read_bytes() == whole
    np.savez(path, **joined(recorder.part(0)[1:])._asdict())
    assert len(recorder.part(0)) == EPISODES
    assert path.read_bytes() == whole


def made_up(*lengths: int) -> list[Rows]:
    """Episodes of these lengths, each ended by a time limit."""
    return [
        Rows(*[np.full(length, number)] * 4, np.zeros(length, bool), np.arange(length) == length - 1, *[None] * 2)
        for number, length in enumerate(lengths)
    ]


@pytest.mark.parametrize(("size", "episodes"), [(1997, 2), (1998, 3), (1999, 3)])
def test_rows_that_a_reader_drops_do_not_count(
    size: int, episodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two episodes of 1000 steps have two timeout rows, and the file's last row may be one of them."""
    monkeypatch.setattr(Recorder, "part", lambda *_: made_up(*[1000] * EPISODES))
    assert len(Recorder("d4rl/hopper-v2", None, 0, tmp_path).record(size, "")) == episodes


def test_a_replay_is_thinned_evenly() -> None:
    """Whole episodes from start to end, with no more rows than requested."""
    episodes = made_up(*[10, 20, 30] * 50)
    chosen = spread(episodes, 600)
    assert 570 <= sum(len(episode.rewards) for episode in chosen) <= 600
    numbers = [int(episode.rewards[0]) for episode in chosen]
    assert np.histogram(numbers, bins=3, range=(0, 150))[0].min() >= 0.25 * len(numbers)
    assert len(spread(episodes, 10**6)) == len(episodes)


def test_episodes_are_told_apart_again() -> None:
    """Joined episodes are split again at the same rows."""
    rows = [Rows(*(np.zeros(len(e.rewards)) if c is None else c for c in e)) for e in made_up(3, 1, 4)]
    assert [len(episode.rewards) for episode in split(joined(rows))] == [3, 1, 4]


# ---- choosing ------------------------------------------------------------------------------------------------------


def rated(*snapshots: Snapshot) -> dict[str, int]:
    """The steps of the policies that are chosen."""
    by_step = {snapshot.step: snapshot for snapshot in snapshots}
    chosen = choose_policies(list(by_step), lambda step, _: by_step[step])
    return {name: snapshot.step for name, snapshot in chosen.items()}


def test_the_medium_policy_falls_and_comes_before_the_expert() -> None:
    """Not the policy that stands still for a third of the return, nor a policy from after the expert."""
    still, broken_again = Snapshot(2, 1000.0, 0.0), Snapshot(5, 1001.0, 1.0)
    chosen = rated(Snapshot(1, 10.0, 1.0), still, Snapshot(3, 900.0, 1.0), Snapshot(4, 3000.0, 0.1), broken_again)
    assert chosen == {"medium": 3, "expert": 4}


def test_where_nothing_falls_the_return_alone_decides() -> None:
    """As in HalfCheetah."""
    chosen = rated(Snapshot(1, 900.0, 0.0), Snapshot(2, 300.0, 0.0), Snapshot(3, 3000.0, 0.0))
    assert chosen == {"medium": 1, "expert": 3}


def test_where_returns_are_negative_the_medium_policy_has_come_a_third_of_the_way() -> None:
    """As in Pendulum, where a third of the expert's return is better than the expert's."""
    returns = (-1200.0, -850.0, -400.0, -150.0)
    chosen = rated(*(Snapshot(step, mean, 0.0) for step, mean in enumerate(returns)))
    assert chosen == {"medium": 1, "expert": 3}


# ---- the command line ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["hopper-medum"], "nearest: hopper-medium"),
        (["CartPole-v1"], "cannot collect 'CartPole-v1'"),
        (["CartPole-v7-medium"], "or name an environment of Gymnasium's"),
        (["FrozenLake-v1-medium"], "its observations are Discrete(16)"),
        (["hopper-medium", "--steps", "0"], "--steps"),
        (["hopper-medium", "--steps", "200", "--eval_freq", "200"], "raise --steps"),
    ],
)
def test_unusable_options_are_answered_in_one_line(
    arguments: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert ended(main, arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert word in line
    assert not list(tmp_path.iterdir())
