"""Reads d3rlpy's replay buffers, of its releases 0.30 to 2.8.1, into arrays in D4RL's layout.

d3rlpy reads a file as the version that the caller names. Here the arrays in the file identify the version. An unknown
version or a missing array, which d3rlpy silently ignores, is an error here.
"""

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shared.data.hdf5 import declared_shapes, read_arrays, read_text
from shared.data.transitions import checked_arrays
from shared.errors import InputError

# Arrays that distinguish d3rlpy's files from D4RL's, and from each other
_VERSIONS = {"num_episodes": "2.1", "total_size": "2.0", "discrete_action": "1.0"}
_D4RLS = ("observations", "actions", "rewards", "terminals", "timeouts")
# Arrays with an entry per step, and the flag that says if an episode ended in a terminal state
_STEPS = ("observations", "actions", "rewards")
_ENDED = "terminated"


def is_buffer(path: Path) -> bool:
    """Whether an HDF5 file is one of d3rlpy's rather than one in D4RL's layout.

    Raises:
        InputError: The file is damaged.
    """
    if read_text(path, "version") and declared_shapes(path, ["columns"]):
        return True
    found = set(declared_shapes(path, (*_VERSIONS, *_D4RLS)))
    # Other people's files may contain a number of episodes under d3rlpy's name.
    in_d4rls_layout = found.issuperset(_D4RLS[:4]) and ("discrete_action" not in found or "timeouts" in found)
    return not in_d4rls_layout and not found.isdisjoint(_VERSIONS)


def read(path: Path) -> dict[str, np.ndarray]:
    """Reads a replay buffer.

    Returns:
        observations (N, S) or images (N, C, H, W). Actions (N, A), or (N,) if they are finite. Rewards (N,), terminals
        (N,) and timeouts (N,), checked. A terminal is the last row of an episode that ended in a terminal state;
        `timeouts` marks the last row of every other episode.

    Raises:
        InputError: The file is damaged, has an unknown version, lacks an array, or has observations of several parts.
    """
    found = declared_shapes(path, _VERSIONS)
    version = next((_VERSIONS[name] for name in _VERSIONS if name in found), None)
    if (said := read_text(path, "version") or version) != version or version is None:
        raise InputError(f"{path} is a replay buffer of d3rlpy's version {said}: 1.0, 2.0 and 2.1 can be read")
    raw = {"1.0": _flat, "2.0": _stacked, "2.1": _by_episode}[version](path)
    # d3rlpy stores finite actions as integers (N, 1); version 1 has a separate flag for them.
    if (actions := raw.get("actions")) is not None and actions.shape[1:] == (1,) and actions.dtype.kind in "iu":
        raw["actions"] = actions[:, 0]
    return checked_arrays(raw, str(path))


def _flat(path: Path) -> dict[str, np.ndarray]:
    """Version 1: a row for each step, with flags for ends of episodes; older files only have flags for terminals."""
    arrays = read_arrays(path, (*_STEPS, "terminals", "episode_terminals", "discrete_action"))
    if arrays.pop("discrete_action").any() and "actions" in arrays:
        arrays["actions"] = np.ravel(arrays["actions"])
    terminals = np.ravel(_of(path, arrays, "terminals")).astype(bool)
    ends = np.ravel(arrays.pop("episode_terminals", terminals)).astype(bool)
    if len(ends) != len(terminals):
        raise InputError(f"{path} has {len(ends)} episode_terminals for {len(terminals)} terminals: write it again")
    if (early := _early(terminals, ends)).any():
        _tell_of_early_terminals(path, int(early.sum()))
        terminals, ends = terminals & ~early, ends & ~early
    return arrays | {"terminals": terminals, "timeouts": ends & ~terminals}


def _early(terminals: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Terminals (N,) in the row before an episode's last, if every episode has its terminal in both rows.

    Version 1's datasets of CartPole are like this. In the oldest files, which have no flags for ends of episodes, only
    pairs of terminals reveal it.
    """
    follows = np.append(terminals[1:], False)
    early = terminals & follows & (~ends if (ends != terminals).any() else ~np.append(False, terminals[:-1]))
    last = terminals & ~early & ends
    paired = early.sum() > 1 and np.array_equal(np.flatnonzero(early) + 1, np.flatnonzero(last))
    return early if paired else np.zeros_like(terminals)


@functools.cache  # a run reads its dataset more than once
def _tell_of_early_terminals(path: Path, number: int) -> None:
    print(
        f"note: {path} has each of its {number:,} terminals in an episode's last two rows; the last one counts",
        file=sys.stderr,
    )


def _stacked(path: Path) -> dict[str, np.ndarray]:
    """Version 2.0: episodes of equal length, in arrays (E, T, ...)."""
    arrays = read_arrays(path, (*_STEPS, _ENDED))
    columns = [*(_of(path, arrays, name) for name in _STEPS), np.ravel(_of(path, arrays, _ENDED))]
    if len({len(column) for column in columns}) > 1:
        raise InputError(f"{path} has arrays of unequal numbers of episodes: write it again")
    return _joined(path, [*zip(*columns, strict=True)])


def _by_episode(path: Path) -> dict[str, np.ndarray]:
    """Version 2.1: separate arrays for each episode."""
    number = int(read_arrays(path, ["num_episodes"])["num_episodes"])
    if number < 1:
        raise InputError(f"{path} says that it holds {number} episodes: write it again")
    if declared_shapes(path, ["observations_0_0"]):
        raise InputError(f"{path} has observations of several parts: the algorithms here take one array")
    # The last episode first, because a file may state any number of episodes.
    _of(path, declared_shapes(path, [last := f"observations_{number - 1}"]), last)
    names = [f"{name}_{episode}" for episode in range(number) for name in (*_STEPS, _ENDED)]
    arrays = read_arrays(path, names)
    values = [_of(path, arrays, name) for name in names]
    return _joined(path, [tuple(values[first : first + 4]) for first in range(0, len(values), 4)])


def _joined(path: Path, episodes: list[tuple[np.ndarray, ...]]) -> dict[str, np.ndarray]:
    """Concatenates episodes; each consists of observations, actions, rewards and whether it was terminated."""
    for observations, actions, rewards, _ in episodes:
        if not len(observations) == len(actions) == len(rewards) > 0:
            raise InputError(f"{path} has an episode whose arrays are empty or of unequal length: write it again")
    *columns, terminated = zip(*episodes, strict=True)
    last = np.cumsum([len(rewards) for rewards in columns[2]]) - 1
    flags = np.zeros((2, last[-1] + 1), bool)
    flags[0, last] = np.array([bool(flag) for flag in terminated])
    flags[1, last] = ~flags[0, last]
    joined = dict(zip(_STEPS, map(np.concatenate, columns), strict=True))
    return joined | {"terminals": flags[0], "timeouts": flags[1]}


def _of(path: Path, arrays: Mapping[str, Any], name: str) -> Any:
    if name not in arrays:
        raise InputError(f"{path} has no array {name!r}: write it again")
    return arrays[name]
