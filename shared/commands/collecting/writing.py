"""Writes datasets in D4RL's v2 layout or Minari's."""

import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

from shared.commands.collecting.recording import joined, split
from shared.data.experience import Rows
from shared.envs.registry import make_env
from shared.errors import InputError

# Arrays that D4RL's own reader ignores: it takes a row's next state from the next row.
_SPARE = ("next_observations", "qpos", "qvel")
_INFOS = ("qpos", "qvel")
_IMAGES_IN_A_CHUNK = 2**20  # bytes


def write_hdf5(path: Path, episodes: list[Rows], attributes: Mapping[str, Any], compact: bool) -> None:
    """Writes episodes in the layout of D4RL's v2 locomotion files, by `write_arrays`.

    Args:
        path: The path of the file.
        episodes: One or more episodes.
        attributes: Texts and numbers.
        compact: Whether to leave out next states and the simulator's states, which D4RL's reader does not use.
    """
    arrays = {
        f"infos/{name}" if name in _INFOS else name: values
        for name, values in joined(episodes)._asdict().items()
        if not (compact and name in _SPARE) and values.size  # outside MuJoCo there are no positions and velocities
    }
    write_arrays(path, arrays, attributes)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> None:
    """Writes a dataset's arrays (N, ...) under their keys, and the file's attributes.

    An existing file is replaced once the new one is complete.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with h5py.File(unfinished, "w") as file:
            file.attrs.update(attributes)
            for key, values in arrays.items():
                _write_array(file, key, values)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_array(file: h5py.File, key: str, array: np.ndarray) -> None:
    """Writes a column per chunk, because similar numbers compress best, but images with several rows per chunk."""
    chunks = (len(array), *(1 for _ in array.shape[1:]))
    if array.ndim == 4:
        array = _bits_or_bytes(array)
        rows = max(1, _IMAGES_IN_A_CHUNK // math.prod(array.shape[1:]))
        chunks = (min(len(array), rows), *array.shape[1:])
    file.create_dataset(key, data=array, chunks=chunks, compression="gzip", compression_opts=9, shuffle=True)


def _bits_or_bytes(images: np.ndarray) -> np.ndarray:
    """Converts black and white images to bits, which the reader converts back; other images stay unchanged."""
    bits = images == 255
    return bits if (bits | (images == 0)).all() else images


def write_minari(name: str, episodes: list[Rows], attributes: Mapping[str, Any]) -> None:
    """Writes episodes into Minari's folder, `$MINARI_DATASETS_PATH` or `~/.minari/datasets`, through Minari itself.

    Args:
        name: The dataset's name, such as `collected/hopper/medium-v0`.
        episodes: One or more episodes.
        attributes: Texts and numbers, including `env_id` and `algorithm`; all of them go into the description.

    Raises:
        InputError: Minari is not installed, already has a dataset of that name, or refuses the name.
    """
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError as error:
        raise InputError("--format minari needs Minari: pip install 'corl-twins[minari]'") from error
    buffers = [
        EpisodeBuffer(
            id=number,
            observations=np.concatenate([rows.observations, rows.next_observations[-1:]]),
            actions=rows.actions,
            rewards=rows.rewards,
            terminations=rows.terminals,
            truncations=rows.timeouts,
        )
        for number, rows in enumerate(split(joined(episodes)))
    ]
    env = make_env(attributes["env_id"])
    shown = env.observation_space
    if buffers[0].observations.dtype != np.uint8:
        shown = gymnasium.spaces.Box(-np.inf, np.inf, shown.shape, np.float32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about a missing author, address and link to code
            minari.create_dataset_from_buffers(
                name,
                buffers,
                env=env,
                observation_space=shown,
                algorithm_name=attributes.get("algorithm", attributes["policy"]),
                description="; ".join(f"{key}: {value}" for key, value in attributes.items()),
            )
    except (ValueError, FileExistsError) as error:
        raise InputError(f"Minari refuses {name!r} ({' '.join(str(error).split())}): give another --output") from error
    finally:
        env.close()
