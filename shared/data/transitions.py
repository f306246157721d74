"""Datasets: from files in D4RL's HDF5 layout to the transitions that an algorithm learns from.

Every step does what D4RL and CORL do, down to the order of float32 operations. Therefore both frameworks start from the
same numbers as the published scores. Arrays of transitions are float32 and have one row per transition; only finite
actions are integers.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shared.data import hdf5
from shared.data.images import stacked_rows
from shared.envs.images import as_bytes, channels_first
from shared.errors import InputError

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_DIMENSIONS = {"observations": 2, "actions": 2, "rewards": 1, "terminals": 1, "timeouts": 1}
_MOST_ACTIONS = 2**24  # up to which float32 represents all integers
_LARGEST = 1e15  # float32 can still sum a hundred million squares of it


class Batch(NamedTuple):
    """Transitions: a batch of B rows, or a dataset of N.

    Attributes:
        observations: (B, S); images are (B, C, H, W) bytes, stored in a dataset as `Stacks`.
        actions: (B, A); finite actions are (B,) integers from 0.
        rewards: (B,).
        next_observations: The same shape as `observations`; meaningless if `terminals` is 1.
        terminals: (B,), 1 if the episode ended in a terminal state, otherwise 0, also at time limits. Over several
            steps (`shared/data/nsteps.py`), the share of the next value that does not count.
    """

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    terminals: Any


class SarsaBatch(NamedTuple):
    """Like `Batch`, with the data's next actions.

    Attributes:
        observations: (B, S).
        actions: (B, A).
        rewards: (B,).
        next_observations: (B, S).
        terminals: (B,).
        next_actions: (B, A), the data's actions in the next states; meaningless if `terminals` is 1.
    """

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    terminals: Any
    next_actions: Any


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a file in D4RL's layout.

    Args:
        path: The file. Rewards, terminals and timeouts may be (N, 1); timeouts may be absent.

    Returns:
        observations (N, S), actions (N, A), rewards (N,), terminals (N,) and, if the file has them, timeouts (N,), in
        the file's own types. Finite actions are integers (N,). Images are bytes (N, C, H, W); bits become 0 and 255.

    Raises:
        InputError: The file is missing, is damaged, refers to other files or lacks a key. Or its arrays have a wrong
            shape or an impossible size, fewer than two rows, NaN or infinities.
    """
    found = hdf5.read_arrays(path, _DIMENSIONS)
    for key in _REQUIRED:
        if key not in found:
            raise InputError(
                f"{path} has no array {key!r}; a dataset needs {', '.join(_REQUIRED)}: `corl-twins datasets import` "
                "turns other layouts into this one"
            )
    return checked_arrays(found, str(path))


def checked_arrays(raw: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
    """Checks the arrays of a dataset: their shapes, types, lengths and values.

    Args:
        raw: Unchecked arrays under `read_hdf5`'s keys; other keys are left out.
        where: A name of the dataset, the prefix of error messages.

    Raises:
        InputError: As for `read_hdf5`, except for faults of the file itself.
    """
    for key in _REQUIRED:
        if key not in raw:
            raise InputError(f"{where} has no array {key!r}; a dataset needs {', '.join(_REQUIRED)}")
    arrays = {key: _checked_array(where, key, raw[key]) for key in _DIMENSIONS if key in raw}
    rows = {key: len(values) for key, values in arrays.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{key} {count}" for key, count in rows.items())
        raise InputError(f"{where} has arrays of unequal length ({counts}): write one row per step into each")
    if rows["observations"] < 2:
        raise InputError(f"{where} has fewer than two rows: a transition needs its next row")
    return arrays


def _checked_array(where: str, key: str, values: Any) -> np.ndarray:
    """Checks an array's shape, type and values; flattens (N, 1) if rows should be numbers."""
    values = np.asarray(values)
    if key == "actions" and values.ndim == 1:
        return _checked_choices(where, values)
    if key == "observations" and values.ndim > 2:
        return _checked_images(where, values)
    if _DIMENSIONS[key] == 1 and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != _DIMENSIONS[key]:
        wanted = "(rows,)" if _DIMENSIONS[key] == 1 else "(rows, size)"
        raise InputError(f"{where}: {key} has shape {values.shape}; write it as {wanted}")
    if values.dtype.kind not in "biuf":
        raise InputError(f"{where}: {key} holds {values.dtype}; write it as numbers")
    bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1)) if values.size else np.empty(0, int)
    if len(bad):
        raise InputError(f"{where}: {key} holds NaN or an infinity, first in row {bad[0]}: remove that episode")
    if values.size and (largest := max(-float(values.min()), float(values.max()))) > _LARGEST:
        raise InputError(
            f"{where}: {key} holds {largest:g}: rescale it, float32 can learn from numbers up to {_LARGEST:g}"
        )
    return values


def _checked_choices(where: str, values: np.ndarray) -> np.ndarray:
    """Checks finite actions, (N,): integers from 0."""
    if values.dtype.kind not in "iu":
        raise InputError(f"{where}: actions has shape {values.shape}; write it as (rows, size), or as whole numbers")
    if len(wrong := np.flatnonzero((values < 0) | (values > _MOST_ACTIONS))):
        raise InputError(f"{where}: actions holds {values[wrong[0]]}, first in row {wrong[0]}: count them from 0")
    return values


def _checked_images(where: str, values: np.ndarray) -> np.ndarray:
    """Checks images of bytes or bits, and returns bytes (N, C, H, W), with bits as 0 and 255."""
    if values.ndim not in (3, 4) or values.dtype not in (np.uint8, np.bool_) or not all(values.shape[1:]):
        raise InputError(
            f"{where}: observations have shape {values.shape} and type {values.dtype}; write vectors as (rows, size), "
            "images as (rows, channels, height, width), (rows, height, width, channels) or, if they are grey, (rows, "
            "height, width), of bytes or bits"
        )
    return as_bytes(channels_first(values, 1))


def shows_images(raw: Mapping[str, np.ndarray]) -> bool:
    """Whether the observations of a dataset are images."""
    return raw["observations"].ndim == 4


def learnt_actions(actions: np.ndarray) -> np.ndarray:
    """Converts actions to training data: vectors (N, A) to float32, finite ones (N,) to int64."""
    return actions.astype(np.float32 if actions.ndim == 2 else np.int64, copy=False)


def extract_transitions(
    raw: dict[str, np.ndarray], max_episode_steps: int | None = None, *, frame_stack: int = 1
) -> Batch:
    """Turns a dataset's rows into transitions; a file in D4RL's layout is read as by D4RL's `qlearning_dataset`.

    There, row i becomes a transition to the observation of row i + 1. The last row and the rows that a time limit ended
    are dropped, because their next row is in another episode. So is a terminal's, but nothing bootstraps there. If
    `raw` states the next observation of every row, as Minari's datasets do, no row is dropped.

    Args:
        raw: The arrays of `read_hdf5`, optionally with `next_observations` (N, S).
        max_episode_steps: Time limit of the environment in steps; used only if there are no `timeouts`.
        frame_stack: Number of frames in an observation of images.

    Returns:
        The dataset of n <= N transitions, float32; finite actions are int64, images `Stacks` of bytes.

    Raises:
        InputError: No transition is left, or neither timeouts nor a time limit say where episodes end.
    """
    knows_all = "next_observations" in raw
    if knows_all and not shows_images(raw):
        columns = {key: raw[key].astype(np.float32, copy=False) for key in Batch._fields}
        return Batch(**columns | {"actions": learnt_actions(raw["actions"])})
    timeouts = ended_by_time(raw, max_episode_steps)
    rows = np.arange(len(timeouts)) if knows_all else np.flatnonzero(~timeouts[:-1])
    if not len(rows):
        raise InputError("the dataset holds no transition: every row is marked in 'timeouts'")
    shown, following = observed(raw, timeouts, rows, rows + 1, frame_stack)
    return Batch(
        observations=shown,
        actions=learnt_actions(raw["actions"].take(rows, axis=0)),
        rewards=raw["rewards"][rows].astype(np.float32, copy=False),
        next_observations=following,
        terminals=raw["terminals"][rows].astype(bool).astype(np.float32),
    )


def observed(
    raw: dict[str, np.ndarray], timeouts: np.ndarray, rows: np.ndarray, behind: np.ndarray, frame_stack: int
) -> tuple[Any, Any]:
    """The observations of `rows` (n,) in a dataset, and those after the steps that end before rows `behind` (n,).

    Args:
        raw: The arrays of a dataset, N rows.
        timeouts: (N,), whether a time limit ended a row.
        rows: The rows of the first observations.
        behind: One more than the rows whose next observations are the second.
        frame_stack: Number of frames in an observation of images.

    Returns:
        Two columns, float32; for images, `Stacks`.
    """
    if shows_images(raw):
        ends = raw["terminals"].astype(bool) | timeouts
        shown, following = stacked_rows(raw, ends, frame_stack)
        return shown.take(rows), following.take(behind - 1)
    observations = raw["observations"]
    if "next_observations" in raw:
        after = raw["next_observations"].take(behind - 1, axis=0)
    else:
        after = observations.take(np.minimum(behind, len(observations) - 1), axis=0)
    return observations.take(rows, axis=0).astype(np.float32, copy=False), after.astype(np.float32, copy=False)


def extract_sarsa(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> SarsaBatch:
    """Extracts transitions like `extract_transitions`, with the action of row i + 1 as next action.

    Rows that a time limit ended are dropped even from Minari's datasets, because their next action is unknown.

    Raises:
        InputError: As for `extract_transitions`.
    """
    transitions = extract_transitions(raw, max_episode_steps)
    followed = np.flatnonzero(~ended_by_time(raw, max_episode_steps)[:-1])
    if not len(followed):
        raise InputError("the dataset holds no transition with a next action: every episode is a single step")
    if "next_observations" in raw:
        transitions = Batch(*(column.take(followed, axis=0) for column in transitions))
    return SarsaBatch(*transitions, raw["actions"].take(followed + 1, axis=0).astype(np.float32, copy=False))


def episode_ends(raw: dict[str, np.ndarray], max_episode_steps: int | None) -> np.ndarray:
    """The last row of each complete episode, (E,), which a terminal or a time limit ended.

    Args:
        raw: The arrays of a dataset, N rows. If it has `trajectory_ends`, because data continue after terminals, only
            those rows end episodes.
        max_episode_steps: Time limit in steps; used only if there are no `timeouts`.

    Raises:
        InputError: There are neither timeouts nor a time limit.
    """
    if "trajectory_ends" in raw:
        return np.flatnonzero(raw["trajectory_ends"])
    return np.flatnonzero(raw["terminals"].astype(bool) | ended_by_time(raw, max_episode_steps))


def ended_by_time(raw: dict[str, np.ndarray], max_episode_steps: int | None) -> np.ndarray:
    """Rows (N,) that a time limit ended, according to `timeouts`, else by D4RL's step counter.

    Raises:
        InputError: There are neither timeouts nor a time limit.
    """
    if "timeouts" in raw:
        return raw["timeouts"].astype(bool)
    if max_episode_steps is None:
        raise InputError(
            "the dataset has no array 'timeouts', and no time limit of its environment is known: add the array, or set "
            "eval_env to an environment with a time limit"
        )
    return _counted_timeouts(raw["terminals"].astype(bool), max_episode_steps)


def _counted_timeouts(terminals: np.ndarray, max_episode_steps: int) -> np.ndarray:
    """Rows (n,) at which D4RL's step counter reaches the time limit.

    The counter is 0 in the first row and after a time limit, but 1 after a terminal. Therefore the episode after a
    terminal is cut a row early. A terminal in a row that the limit ends does not count as one.
    """
    timeouts = np.zeros(len(terminals), dtype=bool)
    start, counter = 0, 0
    for end in [*np.flatnonzero(terminals), len(terminals) - 1]:
        timeouts[start + max_episode_steps - 1 - counter : end + 1 : max_episode_steps] = True
        start, counter = end + 1, 0 if timeouts[end] else 1
    return timeouts


def state_statistics(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each component of the state.

    NumPy adds float32 rows one after the other. For a million rows, the result differs from the exact value by up to
    3e-4, but the published agents used exactly these numbers.

    Args:
        observations: (N, S) float32.

    Returns:
        mean (S,) and population standard deviation plus 1e-3 (S,), float32.
    """
    return observations.mean(axis=0), observations.std(axis=0) + 1e-3


def normalise(observations: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Observations (..., S) in units of `std` (S,) around `mean` (S,)."""
    shifted = observations - mean
    shifted /= std
    return shifted


def normalise_states(
    dataset: Any, statistics: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] = state_statistics
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Normalises transitions by statistics of their first states; also returns mean (S,) and deviation (S,)."""
    mean, std = statistics(dataset.observations)
    normalised = dataset._replace(
        observations=normalise(dataset.observations, mean, std),
        next_observations=normalise(dataset.next_observations, mean, std),
    )
    return normalised, mean, std


def cut_actions(dataset: Any, max_action: float) -> Any:
    """Clips actions to a distance of 1e-5 from their bounds, relative to the bounds, as FQL's authors do.

    The given dataset, a `Batch` or another named tuple with actions, stays unchanged.
    """
    bound = (1.0 - 1e-5) * max_action
    return dataset._replace(actions=np.clip(dataset.actions, -bound, bound))
