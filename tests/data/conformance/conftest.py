"""The genuine d4rl package, and files that exercise every corner of its layout."""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest

from shared.data.transitions import Batch

LIMIT = 5
"""Time limit of the files without timeouts, in steps."""


@pytest.fixture(scope="session")
def d4rl(dataset_folders: None) -> ModuleType:
    """The package itself, imported after `$D4RL_DATASET_DIR` is set, because importing it makes that folder."""
    os.environ["D4RL_SUPPRESS_IMPORT_ERROR"] = "1"
    return pytest.importorskip("d4rl", reason="the genuine d4rl package is not installed: make test-d4rl")


def d4rl_environment(d4rl: ModuleType, path: Path) -> Any:
    """One of its environments without a simulator; its `get_dataset` reads the file."""
    import gym

    with h5py.File(path) as file:
        sizes = [file[key].shape[1:] for key in ("observations", "actions")]

    class Environment(d4rl.offline_env.OfflineEnv):
        observation_space, action_space = (gym.spaces.Box(-1.0, 1.0, size) for size in sizes)
        _max_episode_steps = LIMIT

        def get_dataset(self) -> dict[str, Any]:
            return super().get_dataset(h5path=str(path))

    return Environment()


def differences(theirs: dict[str, np.ndarray], read_and_extract: Callable[[], Batch]) -> list[str]:
    """Differences between our transitions and d4rl's, to the byte.

    Args:
        theirs: The result of `qlearning_dataset`; its terminals are bool.
        read_and_extract: Our reader; an error it raises counts as a difference.
    """
    try:
        ours = read_and_extract()
    except Exception as error:
        return [f"raised {error!r}"]
    expected = {**theirs, "terminals": theirs["terminals"].astype(np.float32)}
    return [name for name in Batch._fields if not same_bytes(getattr(ours, name), expected[name])]


def same_bytes(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Whether type, shape and every bit are equal, including the sign of zeros."""
    kinds = [(array.dtype, array.shape) for array in (actual, expected)]
    return kinds[0] == kinds[1] and actual.tobytes() == expected.tobytes()


def write(path: Path, raw: dict[str, Any]) -> Path:
    """Writes a file of these arrays; `/` in a key makes groups, as in D4RL's files."""
    with h5py.File(path, "w") as file:
        for key, values in raw.items():
            file[key] = values
    return path


def example(rows: int, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Arrays of a file with random values and no flag set; keywords replace arrays, None leaves one out."""
    rng = np.random.default_rng(seed)
    content = {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.zeros(rows, bool),
    }
    return {key: values for key, values in (content | changes).items() if values is not None}


def flags(rows: int, *marked: int) -> np.ndarray:
    """Bools (rows,) that are true in the marked rows."""
    return np.isin(np.arange(rows), np.array(marked) % rows)


_WIDE = np.random.default_rng(1).normal(size=(12, 3))
CORNERS: dict[str, dict[str, Any]] = {
    "no flags": example(12),
    "timeouts and terminals": example(12, terminals=flags(12, 3, 8), timeouts=flags(12, 5)),
    "a row both terminal and timeout": example(12, terminals=flags(12, 5), timeouts=flags(12, 5)),
    "a terminal on the last row": example(12, terminals=flags(12, -1), timeouts=flags(12, 5)),
    "a timeout on the last row": example(12, terminals=flags(12, 5), timeouts=flags(12, -1)),
    "both on the last row": example(12, terminals=flags(12, -1), timeouts=flags(12, -1)),
    "a terminal on the last row but one": example(12, terminals=flags(12, -2)),
    "a timeout on the last row but one": example(12, timeouts=flags(12, -2)),
    "episodes of one row ended by terminals": example(12, terminals=flags(12, 0, 1, 2, 7, 8)),
    "episodes of one row ended by timeouts": example(12, timeouts=flags(12, 0, 1, 2, 7, 8)),
    "two rows": example(2, terminals=flags(2, 0)),
    "no timeouts key": example(23, timeouts=None),
    "no timeouts key, a terminal": example(23, timeouts=None, terminals=flags(23, 2)),
    "no timeouts key, a terminal on the limit": example(23, timeouts=None, terminals=flags(23, 4)),
    "no timeouts key, terminals everywhere": example(23, timeouts=None, terminals=np.ones(23, bool)),
    "no timeouts key, terminals row by row": example(23, timeouts=None, terminals=flags(23, 1, 2, 3, 9, 10, 22)),
    "rewards (N, 1)": example(12, rewards=_WIDE[:, :1], timeouts=flags(12, 5)),
    "terminals (N, 1)": example(12, terminals=flags(12, 3)[:, None], timeouts=flags(12, 5)),
    "timeouts (N, 1)": example(12, timeouts=flags(12, 5)[:, None]),
    "float64": example(12, observations=_WIDE, actions=_WIDE[:, :2], rewards=_WIDE[:, 0], timeouts=flags(12, 5)),
    "flags as float32": example(
        12, terminals=flags(12, 3).astype(np.float32), timeouts=flags(12, 5).astype(np.float32)
    ),
    "flags as bytes": example(12, terminals=flags(12, 3).astype(np.uint8), timeouts=flags(12, 5).astype(np.uint8)),
    "whole rewards": example(12, rewards=np.arange(12), timeouts=flags(12, 5)),
    "zeros of both signs": example(12, rewards=np.copysign(np.zeros(12), _WIDE[:, 0]), timeouts=flags(12, 5)),
    "next observations of its own": example(12, next_observations=_WIDE.astype(np.float32), timeouts=flags(12, 5)),
    "scalar metadata": example(
        12,
        timeouts=flags(12, 5),
        **{"metadata/algorithm": np.bytes_(b"SAC"), "metadata/iteration": np.int32(7), "infos/qpos": _WIDE},
    ),
}
"""Files by what is special about them."""
