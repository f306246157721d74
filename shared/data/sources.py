"""Sources of datasets: D4RL, D4RL-Atari, Minari and OGBench by name, bundled or own files, and Python objects."""

import contextlib
import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shared.data import atari_sets, checksums, d3rlpy_files, download, minari_sets, ogbench_sets
from shared.data.cache import Source, cached
from shared.data.hdf5 import read_arrays, read_attributes
from shared.data.transitions import checked_arrays, read_hdf5
from shared.envs.registry import is_registered
from shared.errors import InputError
from shared.names import ARRAYS, D4RL_FACTS, MINARI, OGBENCH, dataset_path, is_atari

_GIVEN: dict[str, Source] = {}  # by name, datasets that a Python program has provided


def read(name: str) -> Source:
    """Reads a dataset; only missing datasets of D4RL or Minari are downloaded.

    A file with a D4RL name but other contents is used, with a line on standard error.

    Args:
        name: `mini/...`, a D4RL id such as `hopper-medium-v2`, one of D4RL-Atari's such as `breakout-mixed-v0`,
            `minari:mujoco/hopper/medium-v0`, `ogbench:cube-single-play-singletask-v0`, or a file's path. The file is in
            D4RL's layout, or is one of d3rlpy's replay buffers. Within `given`, it may also be the name of that
            dataset.

    Raises:
        InputError: The dataset is unknown, cannot be downloaded, or cannot be read.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    if name.startswith(ARRAYS):
        raise InputError(f"{name} is made of arrays that a Python program held: hand them to corl_twins.train again")
    if name.startswith(MINARI):
        return minari_sets.read(name)
    if name.startswith(OGBENCH):
        return ogbench_sets.read(name)
    if is_atari(name):
        return atari_sets.read(name)
    if name not in D4RL_FACTS and is_registered(name):
        raise InputError(
            f"{name} is an environment, and this needs a dataset: set env to one and eval_env to {name}, or make one "
            f"with `corl-twins collect {name}-medium-replay`"
        )
    path = download.fetch(name) if name in D4RL_FACTS else dataset_path(name)
    source = cached([path], lambda: read_file(path))
    if name not in D4RL_FACTS:
        return source._replace(max_episode_steps=None)
    _tell_of_other_bytes(name, path, source.sha256)
    return source._replace(max_episode_steps=D4RL_FACTS[name]["max_episode_steps"])


def read_file(path: Path) -> Source:
    """Reads and checks the arrays and the attributes of a file, in D4RL's layout or d3rlpy's.

    Raises:
        InputError: The file cannot be read.
    """
    raw = d3rlpy_files.read(path) if d3rlpy_files.is_buffer(path) else read_hdf5(path)
    attributes = read_attributes(path)
    _check_number_of_actions(raw, attributes, str(path))
    return Source(raw, attributes)


def _check_number_of_actions(raw: Mapping[str, np.ndarray], attributes: Mapping[str, Any], where: str) -> None:
    """Checks finite actions against the number of actions that the file states as `n_actions`, if it does.

    Raises:
        InputError: The attribute is not a number of actions, or the actions do not match it.
    """
    stated, actions = attributes.get("n_actions"), raw["actions"]
    if stated is None:
        return
    if actions.ndim != 1 or type(stated) is not int or not actions.max() < stated:
        found = f"the action {actions.max()}" if actions.ndim == 1 else "vectors"
        raise InputError(f"{where} states n_actions {stated!r} and holds {found}: correct the attribute")


def next_observations(name: str, source: Source) -> np.ndarray | None:
    """The observation after each row, (N, S), if a file in D4RL's layout contains it; D4RL's own reader ignores it.

    Args:
        name: As in `read`.
        source: The result of `read`.

    Raises:
        InputError: The array's shape differs from the states', or it contains numbers that are not finite.
    """
    if name in _GIVEN or name.startswith((MINARI, OGBENCH)):
        return None
    path = download.fetch(name) if name in D4RL_FACTS else dataset_path(name)
    if d3rlpy_files.is_buffer(path):
        return None
    found = read_arrays(path, ["next_observations"]).get("next_observations")
    if found is None:
        return None
    expected = source.raw["observations"].shape
    if found.shape != expected or found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        raise InputError(f"{path}: next_observations must be finite numbers of the shape {expected}: correct the array")
    return found


@functools.cache  # a run reads its dataset more than once
def _tell_of_other_bytes(name: str, path: Path, digest: str) -> None:
    if checksums.known(path.name) not in (None, digest):
        print(f"{path} is not the known file of {name}: `corl-twins datasets verify {name}` says more", file=sys.stderr)


@contextlib.contextmanager
def given(name: str, source: Source) -> Iterator[None]:
    """Within the block, `read` returns this dataset under this name, in every thread."""
    _GIVEN[name] = source
    try:
        yield
    finally:
        del _GIVEN[name]


def from_object(env: Any) -> Source:
    """Gets the dataset of a D4RL environment, or of any other object with D4RL's `get_dataset()`.

    Args:
        env: Its `get_dataset()` returns arrays under the keys of D4RL's files; other keys are left out. Its
            `_max_episode_steps`, as D4RL's environments have it, is the time limit if there are no `timeouts`.

    Returns:
        The dataset; its `sha256` is computed from the arrays' names, types, shapes and bytes.

    Raises:
        InputError: The object has no such method, or the arrays cannot be used.
    """
    if not callable(getattr(env, "get_dataset", None)):
        raise InputError(
            f"a source must have D4RL's get_dataset(), {type(env).__name__} has none: name a dataset, "
            "or pass arrays through corl_twins.make_dataset"
        )
    raw = checked_arrays(env.get_dataset(), type(env).__name__)
    digest = hashlib.sha256()
    for key, values in raw.items():
        digest.update(f"{key} {values.dtype.str} {values.shape} ".encode())
        digest.update(values.tobytes())
    return Source(raw, {}, getattr(env, "_max_episode_steps", None), digest.hexdigest())
