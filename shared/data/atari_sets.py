"""D4RL-Atari's datasets as rows: a million frames of one of 60 games, in four files next to D4RL's own.

A name such as `breakout-mixed-v0` is d4rl-atari's. Its files come from the DQN replay logs: NumPy arrays, each in a
separate gzip stream. They do not mark time limits, so only a lost game ends an episode.

Agarwal, Schuurmans & Norouzi, An Optimistic Perspective on Offline Reinforcement Learning, 2019,
https://arxiv.org/abs/1907.04543
"""

import gzip
from pathlib import Path

import numpy as np

from shared.data import npy
from shared.data.cache import Source, cached
from shared.data.transitions import checked_arrays
from shared.errors import InputError
from shared.names import atari_folder

FILES = {"observations": "observation", "actions": "action", "rewards": "reward", "terminals": "terminal"}
"""The file of each array, without its suffix `.gz`."""


def read(name: str) -> Source:
    """Reads a dataset's four files; nothing is downloaded.

    Args:
        name: For example `breakout-mixed-v0`, `pong-epoch-7-v2`.

    Returns:
        Observations (N, 1, H, W) as bytes, of single frames; actions (N,), integers; rewards (N,), the game's own.
        Terminals (N,) mark lost games, and timeouts (N,) are all false.

    Raises:
        InputError: A file is missing, is damaged or declares more than it can contain. Or the arrays do not match.
    """
    files = paths(name)
    return cached([*files.values()], lambda: Source(_rows(files), {}))


def paths(name: str) -> dict[str, Path]:
    """The files of a dataset, by the array that they contain.

    Raises:
        InputError: A file is missing.
    """
    folder = atari_folder(name)
    files = {key: folder / f"{file}.gz" for key, file in FILES.items()}
    if missing := [path.name for path in files.values() if not path.is_file()]:
        raise InputError(
            f"dataset {name!r} is missing {', '.join(missing)}: put d4rl-atari's files into {folder}, or set "
            "D4RL_DATASET_DIR to the folder above the game's"
        )
    return files


def _rows(files: dict[str, Path]) -> dict[str, np.ndarray]:
    raw = {key: _array(path) for key, path in files.items()}
    frames, folder = raw["observations"], files["observations"].parent
    if frames.ndim != 3 or frames.dtype != np.uint8:
        raise InputError(
            f"{files['observations']} holds an array of shape {frames.shape} and type {frames.dtype}, not bytes "
            "(rows, height, width): fetch it again"
        )
    raw["observations"] = frames[:, None]
    return checked_arrays(raw | {"timeouts": np.zeros(len(frames), bool)}, str(folder))


def _array(path: Path) -> np.ndarray:
    """The one array in a file."""
    with npy.faults_of(path, "no array of NumPy in a gzip stream"), gzip.open(path) as file:
        return npy.read_array(file, path.stat().st_size, str(path))
