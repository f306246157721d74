"""Data in the forms in which people store them, as rows of D4RL's layout; and pickles that are refused."""

import io
import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from shared.commands import datasets
from shared.commands.common import ended
from shared.data import forms, pickles, sources
from shared.errors import InputError

LENGTHS = (4, 6, 5)
LAST = np.cumsum(LENGTHS) - 1
SIZE = sum(LENGTHS)
RNG = np.random.default_rng(0)
ROWS: dict[str, Any] = {
    "observations": RNG.normal(size=(SIZE, 3)).astype(np.float32),
    "actions": RNG.uniform(-1, 1, (SIZE, 2)).astype(np.float32),
    "rewards": RNG.normal(size=SIZE).astype(np.float32),
}
AFTER = RNG.normal(size=(SIZE, 3)).astype(np.float32)
ENDS = np.isin(np.arange(SIZE), LAST)
# The second episode ended in a terminal state.
TERMINALS = np.arange(SIZE) == LAST[1]


def episodes(**changes: Callable[[slice, int], Any]) -> list[dict[str, Any]]:
    """Each episode's arrays; a change computes an array from the episode's rows and its number."""
    parts = [slice(last - length + 1, last + 1) for last, length in zip(LAST, LENGTHS, strict=True)]
    plain = [{name: values[part] for name, values in ROWS.items()} for part in parts]
    return [
        rows | {name: change(part, number) for name, change in changes.items()}
        for number, (rows, part) in enumerate(zip(plain, parts, strict=True))
    ]


def check(found: forms.Imported, *, terminals: np.ndarray = TERMINALS, following: bool = False) -> None:
    for name, values in ROWS.items():
        np.testing.assert_array_equal(found.arrays[name], values, err_msg=name)
    np.testing.assert_array_equal(found.arrays["terminals"], terminals)
    np.testing.assert_array_equal(found.arrays["timeouts"], ENDS & ~terminals)
    assert ("next_observations" in found.arrays) == following


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_flat_arrays_under_other_names(tmp_path: Path) -> None:
    flat = {"obs": ROWS["observations"], "acts": ROWS["actions"], "rews": ROWS["rewards"][:, None]}
    told = saved(tmp_path / "a.npz", **flat, terminated=TERMINALS, truncated=ENDS & ~TERMINALS)
    check(found := forms.read(told))
    assert {"terminated is read as terminals", "truncated is read as timeouts"} <= set(found.remarks)
    check(forms.read(saved(tmp_path / "b.npz", **flat, dones=ENDS, terminals=TERMINALS)))
    check(forms.read(saved(tmp_path / "c.npz", **flat, dones=ENDS, timeouts=ENDS & ~TERMINALS)))
    only = saved(tmp_path / "d.npz", **flat, dones=ENDS, infos=np.array([{}] * SIZE, dtype=object))
    found = forms.read(only)
    check(found, terminals=ENDS)
    assert "dones are read as terminals: set --dones if they mean something else" in found.remarks
    check(forms.read(only, dones="timeouts"), terminals=np.zeros(SIZE, bool))
    starts = np.append(True, ENDS[:-1])
    for name, values in {"episode_starts": starts, "episode_ids": np.cumsum(starts)}.items():
        found = forms.read(saved(tmp_path / "e.npz", **flat, **{name: values}))
        # Nothing says how the last one ends.
        np.testing.assert_array_equal(found.arrays["timeouts"], ENDS & (np.arange(SIZE) < SIZE - 1))


def test_a_flat_file_that_knows_its_next_states(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "flow.hdf5", "w") as file:
        columns = {"states": ROWS["observations"], "next_states": AFTER, "dones": ENDS}
        for name, values in (columns | {name: ROWS[name] for name in ("actions", "rewards")}).items():
            file[name] = values
        file.attrs["env_id"] = "Some-v0"
    found = forms.read(tmp_path / "flow.hdf5")
    check(found, terminals=ENDS, following=True)
    np.testing.assert_array_equal(found.arrays["next_observations"], AFTER)
    assert found.attributes == {"env_id": "Some-v0"}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_lists_of_episodes_in_pickles(protocol: int, tmp_path: Path) -> None:
    told = episodes(terminated=lambda _, number: number == 1)
    path = tmp_path / "paths.pkl"
    path.write_bytes(pickle.dumps([OrderedDict(rows) for rows in told], protocol))
    with pytest.raises(InputError, match="give --trust-pickle"):
        forms.read(path)
    check(forms.read(path, trust_pickle=True))
    flags = episodes(terminals=lambda part, _: TERMINALS[part])
    np.save(tmp_path / "paths.npy", np.array(flags, dtype=object), allow_pickle=True)
    check(forms.read(tmp_path / "paths.npy", trust_pickle=True))
    np.save(tmp_path / "flat.npy", np.array(ROWS | {"terminals": TERMINALS, "timeouts": ENDS & ~TERMINALS}, object))
    check(forms.read(tmp_path / "flat.npy", trust_pickle=True))


def test_episodes_that_hold_a_state_more_than_actions(tmp_path: Path) -> None:
    """One by one, and joined with the places where they are to be cut, as `imitation` writes them."""
    longer = episodes(
        observations=lambda part, _: np.concatenate([ROWS["observations"][part], AFTER[part][-1:]]),
        terminal=lambda _, number: number == 1,
    )
    path = tmp_path / "paths.pkl"
    path.write_bytes(pickle.dumps(longer))
    one_by_one = forms.read(path, trust_pickle=True)
    joined = {
        "obs": np.concatenate([rows["observations"] for rows in longer]),
        "acts": ROWS["actions"],
        "rews": ROWS["rewards"],
        "terminal": np.array([False, True, False]),
        "indices": LAST[:-1] + 1,
    }
    for found in (one_by_one, forms.read(saved(tmp_path / "joined.npz", **joined))):
        check(found, following=True)
        np.testing.assert_array_equal(found.arrays["next_observations"][LAST], AFTER[LAST])
        np.testing.assert_array_equal(found.arrays["next_observations"][:3], ROWS["observations"][1:4])


def test_a_group_for_each_episode(tmp_path: Path) -> None:
    """As in robomimic: a group of groups, in the order of their numbers, with an observation in parts."""
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for number, rows in enumerate(episodes(dones=lambda part, _: TERMINALS[part])):
            demo = file.create_group(f"data/demo_{number + 9}")  # 9, 10, 11
            demo["obs/pos"], demo["obs/vel"] = rows["observations"][:, :1], rows["observations"][:, 1:]
            demo["obs/camera"] = np.zeros((len(rows["actions"]), 8, 8, 3), np.uint8)
            for name in ("actions", "rewards", "dones"):
                demo[name] = rows[name]
    found = forms.read(tmp_path / "demos.hdf5")
    check(found)
    assert "an observation is made of pos, vel, side by side: --observations chooses others" in found.remarks
    assert forms.read(tmp_path / "demos.hdf5", observations=["camera"]).arrays["observations"].shape == (SIZE, 3, 8, 8)
    with pytest.raises(InputError, match="has no part 'cam'; it has camera, pos, vel"):
        forms.read(tmp_path / "demos.hdf5", observations=["cam"])


def test_a_folder_with_a_file_for_each_episode(tmp_path: Path) -> None:
    for number, rows in enumerate(episodes(is_terminal=lambda part, _: TERMINALS[part])):
        saved(tmp_path / f"episode-{number}.npz", **rows)
    check(forms.read(tmp_path))


def test_actions_that_led_to_a_rows_observation(tmp_path: Path) -> None:
    """As dm_env writes time steps: a first row without an action, and discounts that are 0 after a terminal step."""
    for number, rows in enumerate(episodes()):
        part = slice(LAST[number] - LENGTHS[number] + 1, LAST[number] + 1)
        late = {name: np.concatenate([np.zeros_like(rows[name][:1]), rows[name]]) for name in ("actions", "rewards")}
        states = np.concatenate([rows["observations"], AFTER[part][-1:]])
        discount = np.append(1.0, 1.0 - TERMINALS[part])
        saved(tmp_path / f"{number}.npz", observation=states, action=late["actions"], reward=late["rewards"],
              discount=discount)  # fmt: skip
    check(forms.read(tmp_path), following=True)


# ---- refusals ------------------------------------------------------------------------------------------------------


class Harmful:
    """Unpickling it calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        """The function and its arguments."""
        return self._call


@pytest.mark.parametrize(
    "harm",
    [Harmful(os.system, "true"), Harmful(eval, "1"), Harmful(getattr, "", "upper"), Harmful(np.load, "x"), sys.exit],
    ids=["os.system", "eval", "getattr", "numpy.load", "a function"],
)
def test_a_pickle_of_anything_else_is_refused(harm: Any, tmp_path: Path) -> None:
    """Before any of its code is called."""
    path = tmp_path / "paths.pkl"
    path.write_bytes(pickle.dumps([{"observations": harm}]))
    with pytest.raises(InputError, match="only NumPy's arrays in lists and dictionaries are read"):
        forms.read(path, trust_pickle=True)
    np.save(tmp_path / "paths.npy", np.array([{"observations": harm}], dtype=object))
    with pytest.raises(InputError, match="is refused"):
        forms.read(tmp_path / "paths.npy", trust_pickle=True)


def test_plain_values_and_arrays_of_any_type_are_unpickled() -> None:
    content = [{"a": np.float32(1.5), "b": {1, 2}, "c": (True, None, 2j, b"x", "y"), "d": np.arange(3, dtype=">i2")}]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (found,) = pickles.load(io.BytesIO(pickle.dumps(content, protocol)))
        np.testing.assert_array_equal(found.pop("d"), content[0]["d"])
        assert found == {name: value for name, value in content[0].items() if name != "d"}


def without(name: str) -> dict[str, Any]:
    return {key: values for key, values in (ROWS | {"terminals": ENDS}).items() if key != name}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (without("observations"), "has no array of observations, called observations, observation, obs"),
        (without("terminals"), "has no array that says where episodes end"),
        (without("x") | {"observations": AFTER[:-3]}, "has 12 observations for 15 actions"),
        (without("x") | {"terminals": ENDS[:4]}, "has 4 terminals for 15 actions"),
        ([1, 2], "its entry 0 is no dictionary"),
        ([], "holds no episode"),
        (3, "holds no dictionary of arrays and no list"),
        ([{"observations": [[1.0], [1.0, 2.0]], "actions": [1]}], "rows of unequal shapes"),
        ([dict(ROWS), dict(ROWS, observations=np.zeros((SIZE, 9)))], "are of different sizes"),
        ([without("x") | {"actions": np.zeros((0, 2)), "observations": np.zeros((0, 3))}], "is empty"),
    ],
)
def test_what_does_not_say_what_it_is_is_refused(content: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(InputError) as caught:
        forms.read(path, trust_pickle=True)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.pkl", "x.hdf5"])
def test_damaged_files_are_told_in_one_line(name: str, tmp_path: Path) -> None:
    for content in (b"", b"PK\x03\x04 no archive", b"\x93NUMPY\x01\x00", b"\x80\x04no pickle"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            forms.read(tmp_path / name, trust_pickle=True)
        assert "\n" not in str(caught.value)


# ---- the command ---------------------------------------------------------------------------------------------------


def test_the_command_writes_what_a_run_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flat = {"obs": ROWS["observations"], "acts": ROWS["actions"], "rews": ROWS["rewards"], "dones": ENDS}
    path, output = saved(tmp_path / "own.npz", **flat), tmp_path / "made" / "own.hdf5"
    arguments = ["import", str(path), str(output), "--env_id", "Some-v0", "--dones", "timeouts"]
    assert ended(datasets.main, arguments) == 0
    assert f"{output}: 15 rows of 3 + 2 numbers, 3 episodes" in capsys.readouterr().out
    source = sources.read(str(output))
    np.testing.assert_array_equal(source.raw["timeouts"], ENDS)
    assert source.attributes["env_id"] == "Some-v0"
    assert ended(datasets.main, arguments) == 2
    assert "exists: name another" in capsys.readouterr().err
    for name in (str(path), str(tmp_path / "paths.pkl")):
        with pytest.raises(InputError, match="corl-twins datasets import"):
            sources.read(name)


def test_nothing_is_left_of_a_file_that_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "own.npz", obs=ROWS["observations"])
    assert ended(datasets.main, ["import", str(path), str(tmp_path / "own.hdf5")]) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["own.npz"]
