"""Datasets: D4RL's HDF5 layout in, the transitions that an algorithm learns from out.

Every step does what D4RL and CORL do, down to the order of float32 operations, so that both frameworks and the
published scores start from the same numbers. Arrays of transitions are float32 and have one row per transition.
"""

import difflib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from shared.errors import InputError

BUNDLED = Path(__file__).resolve().parent.parent / "datasets"
LOCOMOTION = ("halfcheetah", "hopper", "walker2d")

D4RL_FACTS = json.loads(Path(__file__).with_name("d4rl_infos.json").read_text())
_REQUIRED = ("observations", "actions", "rewards", "terminals")
_DIMENSIONS = {"observations": 2, "actions": 2, "rewards": 1, "terminals": 1, "timeouts": 1}
_FILE_SUFFIXES = (".hdf5", ".h5")


class Batch(NamedTuple):
    """Transitions: a batch of B rows, or a dataset of N.

    Attributes:
        observations: (B, S).
        actions: (B, A).
        rewards: (B,).
        next_observations: (B, S); of no meaning where `terminals` is 1.
        terminals: (B,), 1 where the episode ended in a terminal state and 0 elsewhere, time limits included.
    """

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    terminals: Any


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the three known words most like `name`."""
    return f"nearest: {', '.join(difflib.get_close_matches(name, list(known), n=3, cutoff=0.0)) or 'none'}"


def is_file_name(name: str) -> bool:
    """Whether a dataset's name is the path of a file of one's own."""
    return name.endswith(_FILE_SUFFIXES)


def is_known(name: str) -> bool:
    """Whether `name` is a D4RL id, a bundled dataset or the path of a file; the file need not be there."""
    return name in D4RL_FACTS or name in _bundled() or is_file_name(name)


def dataset_path(name: str) -> Path:
    """Finds a dataset's file.

    Args:
        name: `mini/...` for a bundled dataset, a D4RL id such as `hopper-medium-v2`, or the path of an `.hdf5` file.
            D4RL files lie in `$D4RL_DATASET_DIR`, else in `~/.d4rl/datasets`, where the d4rl package puts them too.

    Raises:
        InputError: The name is unknown, or the file is not where it belongs.
    """
    if not is_known(name):
        raise InputError(
            f"unknown dataset {name!r}; {nearest(name, [*D4RL_FACTS, *_bundled()])}, or give the path of an .hdf5 file"
        )
    if is_file_name(name):
        path = Path(name)
    elif name in D4RL_FACTS:
        folder = os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets"
        path = Path(folder) / Path(D4RL_FACTS[name]["url_path"]).name
    else:
        path = _bundled_path(name)
    if not path.is_file():
        where = ", or set D4RL_DATASET_DIR to the folder that holds it" if name in D4RL_FACTS else ""
        raise InputError(f"dataset {name!r} is missing: put its file at {path}{where}")
    return path


def _bundled_path(name: str) -> Path:
    return BUNDLED / f"{name}.hdf5"


def _bundled() -> list[str]:
    return sorted(path.relative_to(BUNDLED).with_suffix("").as_posix() for path in BUNDLED.glob("mini/*.hdf5"))


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a file in D4RL's layout.

    Args:
        path: The file. Rewards, terminals and timeouts may be (N, 1); timeouts may be absent.

    Returns:
        observations (N, S), actions (N, A), rewards (N,), terminals (N,) and, if the file has them, timeouts (N,),
        in the file's own types.

    Raises:
        InputError: The file is missing or damaged, lacks a key, or holds arrays of the wrong shape, fewer than two
            rows, NaN or infinities.
    """
    if not path.is_file():
        raise InputError(f"no dataset at {path}: put the file there or correct the path")
    try:
        with h5py.File(path) as file:
            raw = {key: file[key][()] for key in _DIMENSIONS if isinstance(file.get(key), h5py.Dataset)}
    except (OSError, RuntimeError, KeyError) as error:
        raise InputError(f"{path} is truncated or not an HDF5 file: fetch it again ({_one_line(error)})") from error
    for key in _REQUIRED:
        if key not in raw:
            raise InputError(f"{path} has no array {key!r}; a dataset needs {', '.join(_REQUIRED)}")
    raw = {key: _checked_array(path, key, values) for key, values in raw.items()}
    rows = {key: len(values) for key, values in raw.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{key} {count}" for key, count in rows.items())
        raise InputError(f"{path} has arrays of unequal length ({counts}): write one row per step into each")
    if rows["observations"] < 2:
        raise InputError(f"{path} has fewer than two rows: a transition needs its next row")
    return raw


def read_attributes(path: Path) -> dict[str, Any]:
    """The attributes of an HDF5 file that `read_hdf5` accepts, NumPy scalars as Python's own."""
    with h5py.File(path) as file:
        return {key: value.item() if isinstance(value, np.generic) else value for key, value in file.attrs.items()}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _checked_array(path: Path, key: str, values: Any) -> np.ndarray:
    """One array of the file with its shape, type and values checked, (N, 1) flattened where rows are numbers."""
    values = np.asarray(values)
    if _DIMENSIONS[key] == 1 and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != _DIMENSIONS[key]:
        wanted = "(rows,)" if _DIMENSIONS[key] == 1 else "(rows, size)"
        raise InputError(f"{path}: {key} has shape {values.shape}; write it as {wanted}")
    if values.dtype.kind not in "biuf":
        raise InputError(f"{path}: {key} holds {values.dtype}; write it as numbers")
    bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
    if len(bad):
        raise InputError(f"{path}: {key} holds NaN or an infinity, first in row {bad[0]}: remove that episode")
    return values


def extract_transitions(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> Batch:
    """Turns the rows of a file into transitions exactly as D4RL's `qlearning_dataset` does.

    Row i becomes a transition into the observation of row i + 1. The last row and the rows that a time limit ended
    are dropped: their next row belongs to another episode. After a terminal it does too, but nothing bootstraps there.

    Args:
        raw: The arrays of `read_hdf5`.
        max_episode_steps: Time limit of the environment in steps; used only if there are no `timeouts`.

    Returns:
        The dataset of n <= N - 1 transitions, float32.

    Raises:
        InputError: No transition is left, or neither timeouts nor a time limit say where episodes end.
    """
    terminals = raw["terminals"][:-1].astype(bool)
    if "timeouts" in raw:
        keep = ~raw["timeouts"][:-1].astype(bool)
    elif max_episode_steps is not None:
        keep = ~_counted_timeouts(terminals, max_episode_steps)
    else:
        raise InputError("the dataset has no array 'timeouts' and its environment no time limit: add the array")
    if not keep.any():
        raise InputError("the dataset holds no transition: every row is marked in 'timeouts'")
    observations = raw["observations"]
    return Batch(
        observations=observations[:-1][keep].astype(np.float32, copy=False),
        actions=raw["actions"][:-1][keep].astype(np.float32, copy=False),
        rewards=raw["rewards"][:-1][keep].astype(np.float32, copy=False),
        next_observations=observations[1:][keep].astype(np.float32, copy=False),
        terminals=terminals[keep].astype(np.float32, copy=False),
    )


def _counted_timeouts(terminals: np.ndarray, max_episode_steps: int) -> np.ndarray:
    """Rows (n,) at which D4RL's step counter reaches the time limit.

    The counter stands at 0 in the first row and after a time limit, but at 1 after a terminal: the episode that
    follows one is cut a row early. A terminal on a row that the limit ends does not count as one.
    """
    timeouts = np.zeros(len(terminals), dtype=bool)
    start, counter = 0, 0
    for end in [*np.flatnonzero(terminals), len(terminals) - 1]:
        timeouts[start + max_episode_steps - 1 - counter : end + 1 : max_episode_steps] = True
        start, counter = end + 1, 0 if timeouts[end] else 1
    return timeouts


def state_statistics(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each component of the state.

    NumPy adds float32 rows one after the other, which for a million rows is up to 3e-4 off the exact value; the
    published agents saw exactly these numbers.

    Args:
        observations: (N, S) float32.

    Returns:
        mean (S,) and population standard deviation plus 1e-3 (S,), float32.
    """
    return observations.mean(axis=0), observations.std(axis=0) + 1e-3


def normalise(observations: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Observations (..., S) in units of `std` (S,) around `mean` (S,)."""
    return (observations - mean) / std


def is_locomotion(env: str) -> bool:
    """Whether rewards are scaled for this dataset or environment name."""
    return any(family in env.lower() for family in LOCOMOTION)


def pieces(terminals: np.ndarray, max_length: int = 1000) -> list[slice]:
    """The pieces that transitions fall into, as CORL cuts them when it needs trajectories.

    A piece ends at a terminal or after `max_length` transitions; an open last piece does not count. Rows ended by a
    time limit are gone from a dataset without a mark, so pieces drift across the borders of episodes.

    Args:
        terminals: (N,).
        max_length: Length in transitions; 1000 for every environment, whatever its time limit.
    """
    found, start = [], 0
    for row, terminal in enumerate(terminals.tolist()):
        if terminal or row - start + 1 == max_length:
            found.append(slice(start, row + 1))
            start = row + 1
    return found


def return_range(rewards: np.ndarray, terminals: np.ndarray, max_length: int = 1000) -> tuple[float, float]:
    """Least and greatest return of the `pieces` that the transitions fall into.

    Args:
        rewards: (N,).
        terminals: (N,).
        max_length: Of a piece, in transitions.

    Returns:
        The least and the greatest return, added up in float64.

    Raises:
        InputError: No piece is complete.
    """
    returns = [float(np.cumsum(rewards[piece], dtype=np.float64)[-1]) for piece in pieces(terminals, max_length)]
    if not returns:
        raise InputError("rewards cannot be scaled: the dataset has no complete episode; set normalize_reward to false")
    return min(returns), max(returns)


def keep_best(dataset: Batch, frac: float, discount: float) -> Batch:
    """The transitions of the `pieces` with the highest discounted returns, the best first.

    Also with a `frac` of 1 they are ordered so, and an open last piece is lost, as in CORL.

    Args:
        dataset: The transitions as extracted.
        frac: Share of the pieces to keep, rounded down, but one at least.
        discount: Of the returns that rank the pieces, which are added up in float64.

    Raises:
        InputError: No piece is complete.
    """
    found = pieces(dataset.terminals)
    if not found:
        raise InputError("the best trajectories cannot be kept: the dataset has no complete episode")
    rewards = dataset.rewards.astype(np.float64)
    returns = [rewards[piece] @ discount ** np.arange(piece.stop - piece.start) for piece in found]
    best = np.argsort(returns)[::-1][: max(1, int(frac * len(found)))]
    rows = np.concatenate([np.arange(found[index].start, found[index].stop) for index in best])
    return Batch(*(column[rows] for column in dataset))


def scale_rewards(dataset: Batch, env: str) -> Batch:
    """Scales the rewards of a locomotion dataset so that the range of returns is 1000; others stay as they are.

    Args:
        dataset: The transitions as extracted.
        env: Name of the dataset or environment; the families are recognised by their names in it.

    Raises:
        InputError: The returns have no range.
    """
    if not is_locomotion(env):
        return dataset
    low, high = return_range(dataset.rewards, dataset.terminals)
    if low == high:
        raise InputError("rewards cannot be scaled: all returns are equal; set normalize_reward to false")
    rewards = dataset.rewards / (high - low)
    rewards *= 1000
    return dataset._replace(rewards=rewards)


def modify_rewards(dataset: Batch, env: str) -> Batch:
    """The rule of TD3+BC, IQL and AWAC: locomotion rewards scaled, 1 taken off antmaze rewards, others unchanged."""
    if "antmaze" in env.lower():
        return dataset._replace(rewards=dataset.rewards - 1)
    return scale_rewards(dataset, env)
