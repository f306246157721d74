"""D4RL-Atari's datasets as rows: a million frames of one of 60 games, in four files beside D4RL's own.

A name such as `breakout-mixed-v0` is that of d4rl-atari. Its files come from the DQN replay logs: NumPy arrays, each in
a gzip stream of its own. They hold no time limits, so only a lost game ends an episode.

Agarwal, Schuurmans & Norouzi, An Optimistic Perspective on Offline Reinforcement Learning, 2019,
https://arxiv.org/abs/1907.04543
"""

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shared.data.cache import Source, cached
from shared.data.hdf5 import MAX_BYTES
from shared.data.transitions import checked_arrays
from shared.errors import InputError
from shared.names import atari_folder

FILES = {"observations": "observation", "actions": "action", "rewards": "reward", "terminals": "terminal"}
"""The file of each array, without its suffix `.gz`."""

_MOST_PACKED = 1100  # bytes out of one: deflate reaches 1032
_UNPACKED = 2**16  # bytes that a small file may declare
# Whatever gzip and NumPy raise on a damaged file, depending on where the damage is
_DAMAGE = (OSError, EOFError, ValueError, TypeError, SyntaxError, OverflowError, MemoryError, zlib.error)


def read(name: str) -> Source:
    """Reads a dataset's four files; nothing is downloaded.

    Args:
        name: For example `breakout-mixed-v0`, `pong-epoch-7-v2`.

    Returns:
        Observations (N, 1, H, W), bytes, of single frames; actions (N,), whole numbers; rewards (N,), as the game gave
        them. Terminals (N,) say where the game was over, timeouts (N,) nothing.

    Raises:
        InputError: A file is missing, is damaged or declares more than it can hold. Or the arrays do not fit.
    """
    files = paths(name)
    return cached([*files.values()], lambda: Source(_rows(files), {}))


def paths(name: str) -> dict[str, Path]:
    """The files of a dataset by what they hold.

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
    """The one array in a file, once its declaration is found to fit into the file and into memory."""
    with _faults_of(path), gzip.open(path) as file:
        size, stored = _declared_bytes(file), path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path} declares {size:,} bytes, more than {MAX_BYTES:,}: fetch it again")
        if size > stored * _MOST_PACKED + _UNPACKED:
            raise InputError(f"{path} declares {size:,} bytes, and {stored:,} are stored for them: fetch it again")
        file.seek(0)
        array = np.lib.format.read_array(file, allow_pickle=False)
        # At the end of the stream gzip compares its checksum.
        if file.read(1):
            raise ValueError("bytes behind the array")
        return array


def _declared_bytes(file: Any) -> int:
    """Of the array whose NumPy header the file begins with."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of NumPy's format")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    return math.prod(shape) * dtype.itemsize


@contextmanager
def _faults_of(path: Path) -> Iterator[None]:
    """Tells a file's faults in one line."""
    try:
        yield
    except InputError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"{path} is damaged, or no array of NumPy in a gzip stream: fetch it again ({reason})"
        ) from error
