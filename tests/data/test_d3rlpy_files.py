"""d3rlpy's replay buffers of every version as rows, and one line for unreadable files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from shared.data import d3rlpy_files, sources, transitions
from shared.data.episodes import of_rows
from shared.errors import InputError

LENGTHS = (4, 1, 3)
TERMINATED = (True, False, False)
RNG = np.random.default_rng(0)
# The rows of all episodes, one after another
ROWS: dict[str, np.ndarray] = {
    "observations": RNG.normal(size=(8, 5)).astype(np.float32),
    "actions": RNG.uniform(-1, 1, (8, 2)).astype(np.float32),
    "rewards": RNG.normal(size=(8, 1)).astype(np.float32),
}
LAST = np.cumsum(LENGTHS) - 1
TERMINALS = np.isin(np.arange(8), LAST[:1])
TIMEOUTS = np.isin(np.arange(8), LAST[1:])


def version_1(**changes: Any) -> dict[str, Any]:
    ends = {"terminals": TERMINALS.astype(np.float32), "episode_terminals": (TERMINALS | TIMEOUTS).astype(np.float32)}
    flat = ROWS | {"rewards": ROWS["rewards"][:, 0]} | ends | {"discrete_action": False, "version": "1.0"}
    return flat | changes


def version_20(**changes: Any) -> dict[str, Any]:
    stacked = {name: rows.reshape(2, 4, -1) for name, rows in ROWS.items()}
    return stacked | {"terminated": np.array([True, False]), "total_size": 2, "version": "2.0"} | columns() | changes


def version_21(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"num_episodes": len(LENGTHS), "version": "2.1"} | columns()
    for number, rows in enumerate(np.split(np.arange(8), LAST[:-1] + 1)):
        content |= {f"{name}_{number}": values[rows] for name, values in ROWS.items()}
        content[f"terminated_{number}"] = TERMINATED[number]
    return content | changes


def columns() -> dict[str, Any]:
    return {"columns": ["observations", "actions", "rewards", "terminated"]}


def written(path: Path, content: Mapping[str, Any]) -> Path:
    """A file of these arrays; None leaves one out."""
    with h5py.File(path / "buffer.h5", "w") as file:
        for name, values in content.items():
            if values is not None:
                file[name] = values
    return path / "buffer.h5"


@pytest.mark.parametrize("content", [version_1(), version_21()], ids=["1.0", "2.1"])
def test_rows_and_the_ends_of_episodes(content: dict[str, Any], tmp_path: Path) -> None:
    raw = sources.read(str(written(tmp_path, content))).raw
    for name in ("observations", "actions"):
        np.testing.assert_array_equal(raw[name], ROWS[name])
    np.testing.assert_array_equal(raw["rewards"], ROWS["rewards"][:, 0])
    np.testing.assert_array_equal(raw["terminals"], TERMINALS)
    np.testing.assert_array_equal(raw["timeouts"], TIMEOUTS)


@pytest.mark.parametrize("marked", [True, False])
def test_terminals_in_the_last_two_rows_end_an_episode_once(
    marked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the file also marks the ends of episodes or is older."""
    number, length = 5, 6
    steps = np.arange(number * length) % length
    content = {name: np.zeros((len(steps), *rows.shape[1:]), np.float32) for name, rows in ROWS.items()}
    ends = {"terminals": (steps >= length - 2).astype("f4"), "discrete_action": False}
    ends |= {"episode_terminals": (steps == length - 1).astype("f4")} if marked else {}
    path = written(tmp_path, content | ends)
    raw = sources.read(str(path)).raw
    assert of_rows(raw).lengths.tolist() == [length] * number
    np.testing.assert_array_equal(raw["terminals"], steps == length - 1)
    assert not raw["timeouts"].any()
    assert capsys.readouterr().err.count(f"{path} has each of its 5 terminals in an episode's last two rows") == 1


def test_terminals_of_episodes_of_one_row_stay(tmp_path: Path) -> None:
    """Two in a row mean nothing if there are single ones elsewhere."""
    terminals = np.isin(np.arange(8), (1, 2, 5, 6, 7))
    raw = d3rlpy_files.read(written(tmp_path, version_1(terminals=terminals, episode_terminals=terminals)))
    np.testing.assert_array_equal(raw["terminals"], terminals)


@pytest.mark.parametrize("others", [{"num_episodes": 3}, {"total_size": 8}, {"discrete_action": False}])
def test_a_file_in_d4rls_layout_may_count_as_d3rlpys_do(others: dict[str, Any], tmp_path: Path) -> None:
    flags = {"terminals": TERMINALS, "timeouts": TIMEOUTS}
    raw = sources.read(str(written(tmp_path, ROWS | flags | others))).raw
    np.testing.assert_array_equal(raw["timeouts"], TIMEOUTS)


@pytest.mark.parametrize("name", ["1.0", "2.0", "2.1"])
def test_finite_actions_are_whole_numbers(name: str, tmp_path: Path) -> None:
    chosen = np.arange(8)[:, None] % 3
    content = {
        "1.0": version_1(discrete_action=True, actions=chosen.astype(np.int32)),
        "2.0": version_20(actions=chosen.reshape(2, 4, 1)),
        "2.1": version_21(**{f"actions_{i}": rows for i, rows in enumerate(np.split(chosen, LAST[:-1] + 1))}),
    }[name]
    raw = sources.read(str(written(tmp_path, content))).raw
    np.testing.assert_array_equal(raw["actions"], chosen[:, 0])
    assert transitions.extract_transitions(raw).actions.dtype == np.int64
    if name == "2.0":
        np.testing.assert_array_equal(raw["observations"], ROWS["observations"])
        assert (np.flatnonzero(raw["terminals"]).tolist(), np.flatnonzero(raw["timeouts"]).tolist()) == ([3], [7])


def test_an_older_file_has_terminals_alone(tmp_path: Path) -> None:
    content = version_1(episode_terminals=None, version=None)
    raw = sources.read(str(written(tmp_path, content))).raw
    np.testing.assert_array_equal(raw["terminals"], TERMINALS)
    assert not raw["timeouts"].any()


IMAGES = np.arange(8 * 16, dtype=np.uint8).reshape(8, 1, 4, 4)


def test_images_are_read(tmp_path: Path) -> None:
    """For every version, episode by episode."""
    contents = [
        version_21(**{f"observations_{n}": part for n, part in enumerate(np.split(IMAGES, LAST[:-1] + 1))}),
        version_20(observations=IMAGES.reshape(2, 4, 1, 4, 4)),
        version_1(observations=IMAGES),
    ]
    for number, content in enumerate(contents):
        (folder := tmp_path / str(number)).mkdir()
        np.testing.assert_array_equal(d3rlpy_files.read(written(folder, content))["observations"], IMAGES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (version_21(version="2.2"), "a replay buffer of d3rlpy's version 2.2: 1.0, 2.0 and 2.1 can be read"),
        (version_21(num_episodes=None), "can be read"),
        (version_21(num_episodes=0), "says that it holds 0 episodes"),
        (version_21(num_episodes=10**12), "has no array 'observations_999999999999'"),
        (version_21(terminated_1=None), "has no array 'terminated_1'"),
        (version_21(observations_0_0=IMAGES), "has observations of several parts"),
        (version_21(actions_0=ROWS["actions"][:3]), "arrays are empty or of unequal length"),
        (version_20(terminated=np.ones(3, bool)), "has arrays of unequal numbers of episodes"),
        (version_1(observations=np.zeros((8, 2, 8))), "observations have shape (8, 2, 8) and type float64"),
        (version_1(discrete_action=True, actions=np.ones(8)), "or as whole numbers"),
        (version_1(episode_terminals=TERMINALS[:3]), "3 episode_terminals for 8 terminals"),
        (version_1(rewards=np.full(8, np.nan)), "rewards holds NaN"),
    ],
)
def test_what_cannot_be_read_is_refused(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        sources.read(str(written(tmp_path, content)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
