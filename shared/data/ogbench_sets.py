"""OGBench's datasets as rows: a file of states for all tasks of an environment.

A file contains neither rewards nor next states. Its `terminals` mark the last row of each trajectory, whose action has
no result. Goal-conditioned algorithms need nothing else. For a single task, OGBench's package computes the reward in a
row's own state, and whether the task is done there, from the simulator's state. Trajectories continue after the task is
done.

Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, 2024, https://arxiv.org/abs/2410.20092
"""

import importlib
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from shared.data import npy
from shared.data.cache import Source, cached
from shared.data.hdf5 import MAX_BYTES
from shared.data.transitions import checked_arrays
from shared.envs.registry import make_env
from shared.envs.spaces import spaces_of
from shared.errors import InputError
from shared.names import OGBENCH, OGBENCH_SETS, ogbench_path, ogbench_set

_HOST = "https://rail.eecs.berkeley.edu/datasets/ogbench"
_NEEDED = ("observations", "actions", "terminals", "qpos")
_KIND = "no archive of NumPy's arrays"
_BUTTONS = "button_states"  # in scenes and puzzles


def read(name: str) -> Source:
    """Reads a dataset from the package's folder; nothing is downloaded.

    Args:
        name: For example `ogbench:cube-single-play-singletask-task1-v0`, or `ogbench:cube-single-play-v0` for goals.

    Returns:
        One row for each step, including the last of each trajectory, which `timeouts` marks. `terminals` mark states in
        which the task is done, and `rewards` are of the row's own state. Only `trajectory_ends` (N,) end trajectories.
        Without a task, there are no terminals, and all rewards are 0.

    Raises:
        InputError: The name is unknown, the package or the file is missing, or the file cannot be used.
    """
    file, found = path(name), ogbench_set(name)
    env_id = found.env_id
    env = make_env(env_id)
    try:
        states = cached([file], lambda: Source(_arrays(file), {}))
        _check_sizes(file, states.raw, env)
        raw = _rows(states.raw, {}) if found.has_goals else _rows(states.raw, _of_task(states.raw, env_id, env))
        return states._replace(raw=raw, attributes={"env_id": env_id})
    finally:
        env.close()


def path(name: str) -> Path:
    """The path of a dataset's file.

    Raises:
        InputError: The name is unknown, or the file is missing.
    """
    found = ogbench_path(name)
    if not found.is_file():
        raise InputError(f"dataset {name!r} is missing: put {_HOST}/{found.name} into {found.parent}")
    return found


def _arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that are needed here, in their own types, checked."""
    with npy.faults_of(file, _KIND), zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if lacking := [key for key in _NEEDED if key not in members]:
            raise InputError(f"{file} has no array {lacking[0]!r}; a dataset of OGBench's has {', '.join(_NEEDED)}")
        kept = {key: members[key] for key in (*_NEEDED, _BUTTONS) if key in members}
        if (size := sum(member.file_size for member in kept.values())) > MAX_BYTES:
            raise InputError(f"{file} declares {size:,} bytes, more than {MAX_BYTES:,}: fetch it again")
        raw = {key: _array(archive, member, f"{file}, {key},") for key, member in kept.items()}
    return _checked(raw, file)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> np.ndarray:
    with archive.open(member) as stream:
        return npy.read_array(stream, member.compress_size, where)


def _checked(raw: dict[str, np.ndarray], file: Path) -> dict[str, np.ndarray]:
    """Checks that the arrays consist of whole trajectories.

    Raises:
        InputError: They do not.
    """
    rows = {key: raw[key] for key in ("observations", "actions", "terminals")}
    rows["rewards"] = np.zeros(raw["terminals"].shape[:1])  # a placeholder
    found = checked_arrays(rows, str(file))
    # The simulator's states get the same checks as observations.
    for key in raw.keys() - rows.keys():
        found[key] = checked_arrays(rows | {"observations": raw[key]}, f"{file}, {key}")["observations"]
    del found["rewards"]
    if not found["terminals"][-1]:
        raise InputError(f"{file} ends within a trajectory: fetch it again")
    return found


def _check_sizes(file: Path, raw: dict[str, np.ndarray], env: gymnasium.Env) -> None:
    """Checks that the rows have the sizes of an environment.

    Raises:
        InputError: They have others.
    """
    unwrapped: Any = env.unwrapped
    state, actions = spaces_of("", env, with_goals=True)
    sizes = {"observations": state, "actions": actions.size}
    sizes["qpos"] = unwrapped.model.nq
    if buttons := getattr(unwrapped, "_num_buttons", 0):
        sizes[_BUTTONS] = buttons
    for key, size in sizes.items():
        if key not in raw or raw[key].shape[1:] != (size,):
            found = f"of {raw[key].shape[1:]}" if key in raw else "none"
            raise InputError(f"{file} has {key} {found}, and its environment of ({size},): fetch it again")


def _of_task(states: dict[str, np.ndarray], env_id: str, env: gymnasium.Env) -> dict[str, np.ndarray]:
    """The rewards and terminals of the rows in one task, by the package's own function."""
    labelled = dict(states)
    relabel = importlib.import_module("ogbench.relabel_utils")
    relabel.relabel_dataset(env_id.rpartition("/")[2], env, labelled)
    return {"rewards": labelled["rewards"], "terminals": labelled["masks"] == 0}


def _rows(states: dict[str, np.ndarray], of_task: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows of a file, with the rewards and terminals of a task, if there is one."""
    ends = states["terminals"].astype(bool)
    return {
        "observations": states["observations"],
        "actions": states["actions"],
        "rewards": np.zeros(len(ends), np.float32),
        "terminals": np.zeros(len(ends), bool),
        **of_task,
        "timeouts": ends,
        "trajectory_ends": ends,
    }


def local() -> dict[str, tuple[str, str]]:
    """OGBench's datasets on this machine, with goals and by default tasks: number of rows, sizes of states and actions.

    Empty without the package's folder; damaged files are listed as damaged.
    """
    sets = [f"{OGBENCH}{env}-{kind}" for env, kinds in OGBENCH_SETS.items() for kind in kinds]
    names = [f"{name}{task}-v0" for name in sets for task in ("", "-singletask")]
    return {name: _declared(file) for name in names if (file := ogbench_path(name)).is_file()}


def _declared(file: Path) -> tuple[str, str]:
    try:
        with npy.faults_of(file, _KIND), zipfile.ZipFile(file) as archive:
            shapes = []
            for key in ("observations", "actions"):
                with archive.open(f"{key}.npy") as stream:
                    shapes.append(npy.declared(stream)[0])
            (rows, *states), (_, *actions) = shapes
    except InputError:
        return "damaged", "damaged"
    return f"{rows:,}", "+".join("x".join(map(str, size)) for size in (states, actions))
