"""OGBench's datasets: rows, rewards and masks bitwise equal to its own loader's, and one line for each error."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from corl_torch import iql
from corl_torch.goal_conditioned import gcbc
from shared import names
from shared.commands import datasets
from shared.commands.common import ended
from shared.data import cache, ogbench_sets, sequences, sources, transitions
from shared.data.nsteps import extract_n_steps
from shared.data.rewards import ShiftedRewards, is_antmaze
from shared.envs.registry import make_env
from shared.errors import InputError
from shared.runs.task import Extract, Preparation, load_task
from tests import ogbench_files

pytestmark = ogbench_files.NEEDS_OGBENCH


POINT, CUBE = "pointmaze-medium-navigate", "cube-single-play"
SETS = {POINT: (ogbench_files.pointmaze, 2, 601), CUBE: (ogbench_files.cube, 2, 241)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ogbench_files.Rows]:
    """The rows of both small sets."""
    return {name: make(episodes, steps, seed=0) for name, (make, episodes, steps) in SETS.items()}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This test's own home; the package's folder in it need not exist."""
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    return tmp_path / ".ogbench" / "data"


@pytest.fixture
def files(made: dict[str, ogbench_files.Rows], home: Path) -> Path:
    """The folder with both sets."""
    for name, rows in made.items():
        ogbench_files.write(home, f"{name}-v0", rows, rows)
    return home


def named(dataset: str, task: str = "-task1") -> str:
    """The name that `--env` takes."""
    return f"ogbench:{dataset}-singletask{task}-v0"


def assert_as_loaded(name: str) -> tuple[transitions.Batch, dict[str, np.ndarray]]:
    """Checks that the package's loader gives the same transitions, and returns both."""
    import ogbench

    env, loaded, _ = ogbench.make_env_and_datasets(name.removeprefix("ogbench:"))
    env.close()
    raw = sources.read(name).raw
    found = transitions.extract_sarsa(raw)
    for key in ("observations", "actions", "rewards", "next_observations"):
        assert getattr(found, key).dtype == loaded[key].dtype == np.float32
        assert_array_equal(getattr(found, key), loaded[key])
    assert_array_equal(1.0 - found.terminals, loaded["masks"])
    kept = np.flatnonzero(~raw["timeouts"])
    assert_array_equal(raw["timeouts"][kept + 1], loaded["terminals"])
    # The action taken in the state after a row, including the last row of a trajectory.
    assert_array_equal(found.next_actions, raw["actions"][kept + 1])
    return transitions.extract_transitions(raw), loaded


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dataset", "task"),
    [(POINT, ""), (POINT, "-task2"), (CUBE, ""), (CUBE, "-task1")],
)
def test_rows_rewards_and_masks_are_the_packages_own(files: Path, dataset: str, task: str) -> None:
    """Bitwise equal. The data continue after a done state, and a trajectory does not end in one."""
    batch, loaded = assert_as_loaded(named(dataset, task))
    done = loaded["masks"] == 0
    assert 0 < done.sum() < len(done)
    assert (done[:-1] & done[1:]).any()
    assert not (done & (loaded["terminals"] == 1)).all()
    assert set(np.unique(batch.rewards)) == {-1.0, 0.0}


def test_a_reward_is_of_the_state_that_a_step_begins_in(files: Path, made: dict[str, ogbench_files.Rows]) -> None:
    raw = sources.read(named(POINT)).raw
    near = np.linalg.norm(np.array(made[POINT]["qpos"]) - [20, 20], axis=1) <= 1.0
    assert_array_equal(raw["rewards"], near - 1.0)
    assert_array_equal(raw["terminals"], near)


def test_only_the_files_ends_end_trajectories(files: Path, made: dict[str, ogbench_files.Rows]) -> None:
    """A done state ends a return but not the trajectory; several steps end in it, with its reward."""
    source = sources.read(named(POINT))
    raw, ends = source.raw, np.flatnonzero(made[POINT]["terminals"])
    assert_array_equal(transitions.episode_ends(raw, None), ends)
    assert_array_equal(sequences.trajectory_lengths(sequences.split_trajectories(raw)), [601, 601])
    summed = extract_n_steps(raw, n_steps=3, discount=0.9)
    done = next(
        row for row in np.flatnonzero(raw["terminals"]) if row > 3 and not raw["terminals"][row - 3 : row].any()
    )
    row = int(done - (raw["timeouts"][:done]).sum())
    assert summed.rewards[row - 1] == raw["rewards"][done - 1]
    assert summed.terminals[row - 1] == summed.terminals[row] == 1.0
    assert summed.terminals[row - 3] < 1.0


def test_a_source_says_where_it_is_scored(files: Path) -> None:
    source = sources.read(named(POINT, "-task4"))
    assert source.attributes == {"env_id": "ogbench/pointmaze-medium-singletask-task4-v0"}
    assert source.max_episode_steps is None
    assert source.sha256 == cache.sha256_of([files / f"{POINT}-v0.npz"])
    assert sources.next_observations(named(POINT), source) is None


def test_tasks_share_one_flat_copy(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stores states, and nothing that depends on a task."""
    monkeypatch.setattr(cache, "LARGE", 100)
    first = sources.read(named(POINT))
    monkeypatch.setattr(ogbench_sets, "_arrays", None)
    second = sources.read(named(POINT, "-task2"))
    assert_array_equal(first.raw["observations"], second.raw["observations"])
    assert (first.raw["rewards"] != second.raw["rewards"]).any()
    assert first.sha256 == second.sha256


def test_reading_draws_nothing_from_the_global_generator(files: Path) -> None:
    np.random.seed(3)  # noqa: NPY002
    sources.read(named(POINT))
    assert np.random.random() == np.random.RandomState(3).random()  # noqa: NPY002


def test_rewards_of_its_antmaze_stay_as_they_are() -> None:
    """D4RL's rules recognise antmaze by its name, but OGBench's rewards are different."""
    batch = transitions.Batch(*(np.zeros(3, np.float32) for _ in transitions.Batch._fields))
    for env in ("ogbench:antmaze-large-navigate-singletask-v0", "ogbench/antmaze-large-singletask-v0"):
        assert not is_antmaze(env)
        assert_array_equal(ShiftedRewards().modified(batch, env).rewards, 0)
    assert_array_equal(ShiftedRewards().modified(batch, "antmaze-large-play-v2").rewards, -1)


def test_names() -> None:
    known = names.ogbench_set("ogbench:puzzle-4x4-noisy-singletask-task5-v0")
    assert known == ("puzzle-4x4-noisy-v0.npz", "ogbench/puzzle-4x4-singletask-task5-v0", False)
    assert names.ogbench_set("ogbench:scene-play-v0") == ("scene-play-v0.npz", "ogbench/scene-v0", True)
    assert names.is_known("ogbench:scene-play-singletask-v0")
    assert names.row_name("ogbench:scene-play-singletask-task5-v0") == "ogbench:scene-play-singletask-v0"
    assert names.row_name("hopper-medium-task5-v0") == "hopper-medium-task5-v0"


@pytest.mark.parametrize(
    "name",
    [
        "ogbench:cube-single-play-singletask-task6-v0",
        "ogbench:visual-cube-single-play-singletask-v0",
        "ogbench:antmaze-giant-explore-singletask-v0",
        "ogbench:",
        "ogbench:../../x",
        "ogbench:\0",
    ],
)
def test_other_names_are_told_the_nearest(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    hint = "nearest: ogbench:|no known name is similar"
    with pytest.raises(InputError, match=rf"is no dataset of OGBench's with states; ({hint})"):
        sources.read(name)
    assert ended(datasets.main, ["show", name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_missing_file_is_told_its_place(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is downloaded."""
    line = (
        f"dataset '{named(CUBE)}' is missing: put "
        f"https://rail.eecs.berkeley.edu/datasets/ogbench/cube-single-play-v0.npz into {home}"
    )
    for command in ("show", "download"):
        assert ended(datasets.main, [command, named(CUBE)]) == 2
        assert capsys.readouterr().err == f"error: {line}\n"
    assert not home.exists()


def npy(array: np.ndarray, declared: tuple[int, ...] | None = None) -> bytes:
    """The bytes that `numpy.save` writes, or only a header that declares another shape."""
    file = io.BytesIO()
    if declared is None:
        np.save(file, array)
    else:
        header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": declared}
        np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def written(path: Path, rows: dict[str, Any], packed: int = zipfile.ZIP_DEFLATED, **changes: Any) -> None:
    """An archive of rows; a keyword replaces an array or a whole member, None leaves one out."""
    with zipfile.ZipFile(path, "w", packed) as archive:
        for key, content in (rows | changes).items():
            if content is not None:
                archive.writestr(f"{key}.npy", content if isinstance(content, bytes) else npy(content))


SIZE = 12
ENDS = np.isin(np.arange(SIZE), (5, 11))
STATES = np.zeros((SIZE, 2), np.float32)
ROWS: dict[str, Any] = {"observations": STATES, "actions": STATES, "terminals": ENDS, "qpos": STATES, "qvel": STATES}
# The subject of each fault, the file written, and the line that reports it
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "an array missing": ({"qpos": None}, "has no array 'qpos'; a dataset of OGBench's has observations, actions"),
    "no NumPy": ({"actions": b"no array"}, "is damaged"),
    "fewer numbers": ({"actions": npy(STATES)[:-4]}, "is damaged"),
    "a bomb": ({"actions": npy(STATES, (10**8, 2))}, "v0.npz, actions, declares 800,000,000 bytes, and .* are stored"),
    "too large": ({"actions": npy(STATES, (10**12, 2))}, "declares 8,000,000,000,000 bytes, more than"),
    "unequal lengths": ({"actions": STATES[:-1]}, "has arrays of unequal length"),
    "unequal states": ({"qpos": STATES[:-1]}, "v0.npz, qpos has arrays of unequal length"),
    "NaN": ({"observations": np.full_like(STATES, np.nan)}, "observations holds NaN"),
    "NaN of the simulator": ({"qpos": np.full_like(STATES, np.nan)}, "v0.npz, qpos: observations holds NaN"),
    "no end": ({"terminals": np.zeros(SIZE, bool)}, "ends within a trajectory: fetch it again"),
    "images": ({"observations": np.zeros((SIZE, 4, 4, 3), np.uint8)}, r"has observations of \(3, 4, 4\), and"),
    "another robot": ({"observations": STATES[:, :1]}, r"has observations of \(1,\), and its environment of \(2,\)"),
    "other actions": ({"actions": np.zeros((SIZE, 3))}, r"has actions of \(3,\), and its environment of \(2,\)"),
    "another simulator": ({"qpos": np.zeros((SIZE, 3))}, r"has qpos of \(3,\), and its environment of \(2,\)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_in_one_line(fault: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the command ends with exit code 2."""
    changes, line = FAULTS[fault]
    home.mkdir(parents=True)
    written(home / f"{POINT}-v0.npz", ROWS, **changes)
    with pytest.raises(InputError, match=line) as error:
        sources.read(named(POINT))
    assert "\n" not in str(error.value)
    assert ended(datasets.main, ["show", named(POINT)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def complaint() -> str:
    """The error of reading the small maze, or nothing if a changed byte has no effect here."""
    try:
        sources.read(named(POINT))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("packed", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_file_cut_or_changed_anywhere_is_told_in_one_line(packed: int, home: Path) -> None:
    home.mkdir(parents=True)
    path = home / f"{POINT}-v0.npz"
    written(path, ROWS, packed)
    whole = path.read_bytes()
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        with pytest.raises(InputError, match="is damaged") as error:
            sources.read(named(POINT))
        assert "\n" not in str(error.value)
    for byte in range(0, len(whole), 41):
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 255]) + whole[byte + 1 :])
        assert "\n" not in complaint()


def test_buttons_are_an_environments(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scene's file must contain them, because they also decide whether the task is done."""
    env = make_env("ogbench/scene-singletask-v0")
    monkeypatch.setattr(ogbench_sets, "make_env", lambda _: env)
    env.reset(seed=0)
    unwrapped: Any = env.unwrapped
    targets = unwrapped._target_button_states
    qpos = np.tile(unwrapped.data.qpos, (3, 1))
    qpos[1:, 14:17] = unwrapped.data.mocap_pos[0]
    qpos[1:, 23], qpos[1:, 24] = unwrapped._target_drawer_pos, unwrapped._target_window_pos
    rows = {
        "observations": np.zeros((3, 40), np.float32),
        "actions": np.zeros((3, 5), np.float32),
        "terminals": np.array([False, False, True]),
        "qpos": qpos.astype(np.float32),
        "button_states": np.array([targets, targets, 1 - targets]),
    }
    home.mkdir(parents=True)
    written(home / "scene-play-v0.npz", rows, button_states=None)
    with pytest.raises(InputError, match=r"has button_states none, and its environment of \(2,\)"):
        sources.read("ogbench:scene-play-singletask-v0")
    written(home / "scene-play-v0.npz", rows)
    raw = sources.read("ogbench:scene-play-singletask-v0").raw
    assert raw["terminals"].tolist() == [False, True, False]
    assert raw["rewards"].tolist()[1:] == [0.0, -2.0]


def test_commands_know_the_names(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`list` shows the sets that are present, `show` describes one, and `download` says where it is."""
    monkeypatch.chdir(tmp_path)
    (files / "scene-play-v0.npz").write_bytes(b"no archive")
    written(files / "scene-noisy-v0.npz", ROWS, actions=None)
    written(files / "puzzle-3x3-play-v0.npz", ROWS, actions=np.float32(1))
    assert ended(datasets.main, ["list"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("ogbench:")]
    damaged = ("scene-play", "scene-noisy", "puzzle-3x3-play")
    assert listed == [
        [name, env, *facts, "yes"]
        for of, env, *facts in (
            (POINT, "pointmaze", "1,202", "2+2"),
            (CUBE, "cube", "482", "28+5"),
            *((name, name.partition("-")[0], "damaged", "damaged") for name in damaged),
        )
        for name in (f"ogbench:{of}-v0", named(of, ""))
    ]
    assert ended(datasets.main, ["show", named(POINT)]) == 0
    told = capsys.readouterr().out
    assert "2 of 601 to 601 rows" in told
    assert "keeps 1,200 of 1,202 rows" in told
    assert ended(datasets.main, ["download", named(POINT)]) == 0
    assert capsys.readouterr().out == f"{files / f'{POINT}-v0.npz'}\n"


# ---- mistakes that the tests above must find -----------------------------------------------------------------------


def test_a_set_with_goals_has_the_states_of_its_tasks_and_no_rewards(files: Path) -> None:
    """An algorithm for one task is told so, and a goal-conditioned one in an environment without goals."""
    found, of_task = sources.read(f"ogbench:{POINT}-v0"), sources.read(named(POINT))
    assert found.attributes == {"env_id": "ogbench/pointmaze-medium-v0"}
    for key in ("observations", "actions", "timeouts"):
        assert_array_equal(found.raw[key], of_task.raw[key])
    assert not found.raw["rewards"].any()
    assert not found.raw["terminals"].any()
    shown = "ogbench/pointmaze-medium-v0"
    with pytest.raises(InputError, match=f"environment '{shown}' sets a goal in each episode: use a goal_conditioned"):
        load_task(iql.TrainConfig(env=f"ogbench:{POINT}-v0"))
    task = load_task(gcbc.TrainConfig(env=f"ogbench:{POINT}-v0"), Preparation(Extract.GOALS, normalise=False))
    assert len(task.dataset.last) == 1200
    task.evaluator.close()
    with pytest.raises(InputError, match="task1-v0' sets no goals: set eval_env to one that does"):
        load_task(gcbc.TrainConfig(env=named(POINT)), Preparation(Extract.GOALS, normalise=False))
