"""The forms in which people store data, converted to arrays in D4RL's layout.

They are flat arrays under other names, or separate episodes, in HDF5 files, NumPy files, pickles and folders of NumPy
files. Nothing is guessed: data whose array names do not say what they are, are refused.
"""

import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shared.data import hdf5, npy, pickles
from shared.data.transitions import checked_arrays
from shared.errors import InputError
from shared.names import NUMPYS, PICKLES

_KNOWN = {
    "observations": ("observations", "observation", "obs", "ob", "states", "state", "s", "image", "images"),
    "actions": ("actions", "action", "acts", "act", "a"),
    "rewards": ("rewards", "reward", "rews", "rew", "r"),
    "next_observations": (
        "next_observations", "next_observation", "next_obs", "next_states", "next_state", "new_obs", "obs_next", "s2",
    ),
    "terminals": ("terminals", "terminal", "terminated", "terminations", "is_terminal"),
    "timeouts": ("timeouts", "timeout", "truncated", "truncations"),
    "dones": ("dones", "done"),
    "starts": ("episode_starts", "is_first"),
    "ids": ("episode_ids", "episode_id", "traj_ids", "episode"),
    "discounts": ("discounts", "discount"),
}  # fmt: skip
"""Other projects' names for arrays, by our name."""

_MEANT = {theirs: ours for ours, names in _KNOWN.items() for theirs in names}
_FLAGS = ("terminals", "timeouts", "dones", "starts")
_KIND = "no file of NumPy's arrays"


class _Choices(NamedTuple):
    """The user's choices, and the remarks so far."""

    observations: Sequence[str]
    dones: str
    remarks: list[str]

    def remark(self, line: str) -> None:
        """Adds a line, unless it is already there."""
        if line not in self.remarks:
            self.remarks.append(line)


class Imported(NamedTuple):
    """A dataset in D4RL's layout.

    Attributes:
        arrays: As `shared.data.read_hdf5` returns, with `next_observations` if they are known.
        attributes: Texts and numbers that the file states about itself.
        remarks: Lines that say how the data were interpreted.
    """

    arrays: dict[str, np.ndarray]
    attributes: dict[str, Any]
    remarks: list[str]


def read(
    path: Path, trust_pickle: bool = False, observations: Sequence[str] = (), dones: str = "terminals"
) -> Imported:
    """Reads data in any of the known forms.

    Args:
        path: An HDF5 file, a NumPy file, a pickle, or a folder of NumPy files with an episode each.
        trust_pickle: Whether to read pickles; even then only lists and dictionaries of arrays are read.
        observations: The parts to use of an observation with several; empty means all vectors, sorted by name.
        dones: The meaning of flags that only say where episodes end: `terminals` or `timeouts`.

    Raises:
        InputError: The data cannot be read, or do not say what they are.
    """
    attributes: dict[str, Any] = {}
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix == ".npz")
        if not files:
            raise InputError(f"{path} holds no .npz files: name a folder with one for each episode")
        content: Any = [_npz(file, trust_pickle) for file in files]
    elif path.suffix in (*NUMPYS, *PICKLES):
        content = _numpys(path, trust_pickle)
    else:
        content, attributes = hdf5.read_tree(path), hdf5.read_attributes(path)
    choices = _Choices(observations, dones, [])
    return Imported(_assembled(content, str(path), choices), attributes, choices.remarks)


# ---- files ---------------------------------------------------------------------------------------------------------


def _numpys(path: Path, trust_pickle: bool) -> Any:
    if not path.is_file():
        raise InputError(f"no file at {path}: correct the path")
    if path.suffix == ".npz":
        return _npz(path, trust_pickle)
    if path.stat().st_size > hdf5.MAX_BYTES:
        raise InputError(f"{path} is larger than {hdf5.MAX_BYTES:,} bytes: split it")
    if path.suffix in PICKLES:
        with npy.faults_of(path, "no pickle"), path.open("rb") as file:
            return _unpickled(file, str(path), trust_pickle)
    with npy.faults_of(path, _KIND), path.open("rb") as file:
        return _array(file, path.stat().st_size, str(path), trust_pickle)


def _npz(path: Path, trust_pickle: bool) -> dict[str, Any]:
    with npy.faults_of(path, _KIND), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if (size := sum(member.file_size for member in members)) > hdf5.MAX_BYTES:
            raise InputError(f"{path} declares {size:,} bytes, more than {hdf5.MAX_BYTES:,}: split it")
        found = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            # Irrelevant objects, such as the infos of each step, are skipped, and therefore never unpickled.
            if name in _MEANT or name in ("indices", "arr_0"):
                with archive.open(member) as stream:
                    found[name] = _array(stream, member.compress_size, f"{path}, {name},", trust_pickle)
        return found.get("arr_0") if found.keys() == {"arr_0"} else found  # type: ignore[return-value]  # a pickle's


def _array(stream: Any, stored: int, where: str, trust_pickle: bool) -> Any:
    """An array, or the contents of a pickled one."""
    if npy.declared(stream)[1].hasobject:
        return _unpickled(stream, where, trust_pickle)
    stream.seek(0)
    return npy.read_array(stream, stored, where)


def _unpickled(stream: Any, where: str, trust_pickle: bool) -> Any:
    if not trust_pickle:
        raise InputError(
            f"{where} holds pickled objects, which could run any program when they are read: if you trust who made "
            "them, give --trust-pickle; even then only arrays in lists and dictionaries are read"
        )
    try:
        content = pickles.load(stream)
    except pickles.RefusedError as error:
        raise InputError(f"{where} is refused: {error}") from None
    except Exception as error:  # a damaged pickle makes Python raise a dozen unrelated types
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{where} is a damaged pickle: fetch it again ({reason})") from error
    if isinstance(content, np.ndarray) and content.dtype.hasobject:
        content = content.item() if content.ndim == 0 else content.ravel().tolist()
    return content


# ---- episodes and flat arrays --------------------------------------------------------------------------------------


def _assembled(content: Any, where: str, choices: _Choices) -> dict[str, np.ndarray]:
    """Assembles and checks arrays in D4RL's layout."""
    if isinstance(content, Mapping) and (episodes := _groups(content)):
        content = episodes
    if isinstance(content, list | tuple):
        arrays = _of_episodes(content, where, choices)
    elif isinstance(content, Mapping):
        arrays = _flat(_columns(content, where, choices), where, choices)
    else:
        raise InputError(
            f"{where} holds no dictionary of arrays and no list of such: nothing says what the numbers are"
        )
    if np.ndim(arrays["actions"]) == 2 and arrays["actions"].shape[1] == 1 and arrays["actions"].dtype.kind in "iu":
        arrays["actions"] = arrays["actions"][:, 0]  # finite ones
    found = checked_arrays(arrays, where)
    if "next_observations" in arrays:
        following = {**arrays, "observations": arrays["next_observations"]}
        found["next_observations"] = checked_arrays(following, f"{where}, next observations,")["observations"]
    return found


def _groups(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The episodes in a file with a group for each, at the top level or one below; ordered by their numbers."""
    inner = [group for group in content.values() if isinstance(group, Mapping)]
    for level in (content, *inner):
        found = [name for name, group in level.items() if isinstance(group, Mapping) and _has(group, "actions")]
        if found:
            return [level[name] for name in sorted(found, key=_numbers_apart)]
    return []


def _numbers_apart(name: str) -> list[Any]:
    """A sort key that puts demo_2 before demo_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _has(content: Mapping[str, Any], wanted: str) -> bool:
    return any(_MEANT.get(name) == wanted for name in content)


def _columns(content: Mapping[str, Any], where: str, choices: _Choices) -> dict[str, np.ndarray]:
    """The arrays under our names."""
    found: dict[str, np.ndarray] = {}
    # If an array is there under several names, the first name in the table counts.
    for ours, names in _KNOWN.items():
        theirs = next((name for name in names if name in content), None)
        if theirs is None:
            continue
        values = content[theirs]
        if isinstance(values, Mapping):
            values = _joined(values, f"{where}, {theirs}", choices)
        try:
            found[ours] = np.asarray(values)
        except ValueError:
            found[ours] = np.array(None)
        if found[ours].dtype.hasobject:
            raise InputError(f"{where}: {theirs} holds rows of unequal shapes or objects: write it as one array")
        if theirs != ours:
            choices.remark(f"{theirs} is read as {ours}")
    if "dones" in found and found.keys().isdisjoint({"terminals", "timeouts"}):
        found[choices.dones] = found.pop("dones")
        choices.remark(f"dones are read as {choices.dones}: set --dones if they mean something else")
    if "indices" in content:
        found["indices"] = np.asarray(content["indices"])
    if lacking := [name for name in ("observations", "actions") if name not in found]:
        known = ", ".join(_KNOWN[lacking[0]][:5])
        raise InputError(
            f"{where} has no array of {lacking[0]}, called {known} or the like: rename yours to {lacking[0]}"
        )
    return found


def _joined(values: Mapping[str, Any], where: str, choices: _Choices) -> np.ndarray:
    """Concatenates the parts of an observation: the chosen ones, else all vectors."""
    arrays = {name: np.asarray(value) for name, value in values.items() if not isinstance(value, Mapping)}
    if missing := [part for part in choices.observations if part not in arrays]:
        raise InputError(f"{where} has no part {missing[0]!r}; it has {', '.join(arrays)}")
    taken = list(choices.observations) or sorted(name for name, array in arrays.items() if array.ndim in (1, 2))
    if len(taken) == 1:
        return arrays[taken[0]]
    if not taken or any(arrays[name].ndim > 2 for name in taken):
        raise InputError(
            f"{where} has the parts {', '.join(arrays)}, which do not make one vector: name those that shall, or one "
            "of images, with --observations"
        )
    choices.remark(f"an observation is made of {', '.join(taken)}, side by side: --observations chooses others")
    return np.concatenate([arrays[name].reshape(len(arrays[name]), -1) for name in taken], axis=1)


def _of_episodes(episodes: Iterable[Any], where: str, choices: _Choices) -> dict[str, np.ndarray]:
    """Concatenates the rows of episodes."""
    pieces = []
    for number, episode in enumerate(episodes):
        if not isinstance(episode, Mapping):
            raise InputError(f"{where} is a list, but its entry {number} is no dictionary of arrays")
        here = f"{where}, episode {number}"
        columns = _columns(episode, here, choices)
        pieces.append(_episode(columns, here, choices))
    if not pieces:
        raise InputError(f"{where} holds no episode")
    shared = [name for name in pieces[0] if all(name in piece for piece in pieces)]
    try:
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in shared}
    except ValueError:
        raise InputError(f"{where} has episodes whose observations or actions are of different sizes") from None


def _episode(columns: dict[str, np.ndarray], where: str, choices: _Choices) -> dict[str, np.ndarray]:
    """The rows of one whole episode, which ends in a terminal or else at a time limit."""
    if "discounts" in columns or "starts" in columns:
        columns = _moved(columns, where, choices)
    columns = _without_last_state(columns, where)
    size = len(columns["actions"])
    if not size:
        raise InputError(f"{where} is empty")
    terminated = _ended(columns)
    terminals, timeouts = np.zeros(size, bool), np.zeros(size, bool)
    terminals[-1], timeouts[-1] = terminated, not terminated
    return _rows(columns, choices) | {"terminals": terminals, "timeouts": timeouts}


def _ended(columns: Mapping[str, np.ndarray]) -> bool:
    """Whether an episode ended in a terminal state, according to its own flag or its last row's."""
    for name in ("terminals", "dones"):
        if name in columns:
            return bool(np.ravel(columns[name])[-1])
    return False


def _moved(columns: dict[str, np.ndarray], where: str, choices: _Choices) -> dict[str, np.ndarray]:
    """Realigns an episode whose rows contain the action and the reward that led to their observation."""
    size = len(columns["observations"])
    if len(columns["actions"]) != size:
        return columns
    choices.remark("actions and rewards are those that led to a row's observation, and are moved a row up")
    moved = {name: values[1:] for name, values in columns.items() if name != "observations" and np.ndim(values)}
    if "discounts" in columns and "terminals" not in columns:
        moved["terminals"] = np.ravel(moved["discounts"]) == 0
    return moved | {"observations": columns["observations"]}


def _without_last_state(columns: dict[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """An episode with as many states as actions; an additional state becomes the last next observation."""
    states, size = columns["observations"], len(columns["actions"])
    if len(states) == size + 1:
        return {**columns, "observations": states[:-1], "next_observations": states[1:]}
    if len(states) != size:
        raise InputError(f"{where} has {len(states)} observations for {size} actions: as many, or one more, are right")
    return columns


def _rows(columns: Mapping[str, np.ndarray], choices: _Choices) -> dict[str, np.ndarray]:
    """The columns except for flags; missing rewards become zeros."""
    found = {name: columns[name] for name in ("observations", "actions", "next_observations") if name in columns}
    if "rewards" not in columns:
        choices.remark("there are no rewards: zeros are written, from which imitation alone can learn")
    rewards = columns.get("rewards", np.zeros(len(columns["actions"]), np.float32))
    return found | {"rewards": rewards.reshape(len(rewards), -1)[:, 0] if rewards.size == len(rewards) else rewards}


def _flat(columns: dict[str, np.ndarray], where: str, choices: _Choices) -> dict[str, np.ndarray]:
    """The rows of all episodes, with flags at their ends."""
    size = len(columns["actions"])
    if "indices" in columns or (columns["observations"].ndim and len(columns["observations"]) != size):
        return _split(columns, where, choices)
    flags = {name: np.ravel(columns[name]).astype(bool) for name in _FLAGS if name in columns}
    if "ids" in columns:
        flags["starts"] = np.append(True, np.diff(np.ravel(columns["ids"])) != 0)
    if not flags:
        raise InputError(f"{where} has no array that says where episodes end: add 'terminals' and 'timeouts'")
    if odd := [name for name, values in flags.items() if len(values) != size]:
        raise InputError(f"{where} has {len(flags[odd[0]])} {odd[0]} for {size} actions: write one for each row")
    terminals = flags.get("terminals", np.zeros(size, bool))
    timeouts = flags.get("timeouts", np.zeros(size, bool))
    if "dones" in flags:
        ended = flags["dones"] & ~terminals & ~timeouts
        if "terminals" in flags:
            timeouts = timeouts | ended
        else:
            terminals = ended
    if "starts" in flags:
        timeouts = timeouts | (np.append(flags["starts"][1:], False) & ~terminals)
    return _rows(columns, choices) | {"terminals": terminals, "timeouts": timeouts}


def _split(columns: dict[str, np.ndarray], where: str, choices: _Choices) -> dict[str, np.ndarray]:
    """Splits concatenated episodes with one more state than actions each, at `indices` of actions."""
    size, states = len(columns["actions"]), columns["observations"]
    cuts = np.ravel(columns.get("indices", np.empty(0, int))).astype(int)
    bounds = np.concatenate([[0], cuts, [size]])
    number = len(bounds) - 1
    if len(states) != size + number or (np.diff(bounds) <= 0).any():
        raise InputError(
            f"{where} has {len(states)} observations for {size} actions: one of each a row, or an array 'indices' of "
            "the actions with which episodes begin, from the second one on"
        )
    ended = np.ravel(columns.get("terminals", np.zeros(number, bool))).astype(bool)
    if len(ended) != number:
        raise InputError(f"{where} has {len(ended)} terminals for {number} episodes: write one for each")
    pieces = []
    for episode, (first, last) in enumerate(pairwise(bounds)):
        shared = [name for name in ("actions", "rewards") if name in columns]
        piece: dict[str, np.ndarray] = {name: columns[name][first:last] for name in shared}
        piece["observations"] = states[first + episode : last + episode + 1]
        pieces.append(_episode(piece | {"terminals": ended[episode : episode + 1]}, where, choices))
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
