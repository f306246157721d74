"""Small files in OGBench's layout, made by its own environments and scripted policies.

The published files are made in the same way, with the same noise. Here the goals alternate between those of the five
tasks, so that a short file contains states in which a task is done, and data that continue after them.
"""

import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import cycle, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.commands.collecting import oracles

# On Pythons with which the extra can be installed, a missing package is a failure.
NEEDS_OGBENCH = pytest.mark.skipif(
    sys.version_info >= (3, 13) and find_spec("ogbench") is None,
    reason="labmaze, which OGBench's extra asks for, has no wheel for this Python",
)

Rows = dict[str, list[Any]]
_STATES = {"qpos": "prev_qpos", "qvel": "prev_qvel"}
# The cube's targets in the five tasks of cube-single
_PLACES = ((0.425, -0.1), (0.5, 0.0), (0.35, 0.0), (0.5, 0.2), (0.5, -0.2))


def write(folder: Path, name: str, rows: Rows, others: Rows) -> Path:
    """Writes rows as OGBench does, for training and for validation; returns the path of the training file."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, content in (("", rows), ("-val", others)):
        arrays = {key: np.array(of, bool if key == "terminals" else np.float32) for key, of in content.items()}
        np.savez_compressed(folder / f"{name}{suffix}.npz", **arrays)
    return folder / f"{name}.npz"


def pointmaze(episodes: int, steps: int, seed: int, task: int | None = None) -> Rows:
    """Rows of `pointmaze-medium-navigate`: a point moves from goal to goal, with noise of deviation 0.5.

    If a task's number (from 1) is given, each episode starts where that task does, and has only its goal.
    """

    def tasks(maze: Any) -> tuple[Iterator[dict[str, Any]], Iterator[tuple[int, int]]]:
        found = maze.task_infos if task is None else maze.task_infos[task - 1 : task]
        goals = cycle(each["goal_ij"] for each in found)
        starts = goals if task is None else repeat(found[0]["init_ij"])
        return ({"init_ij": next(starts), "goal_ij": next(goals)} for _ in range(episodes)), goals

    return _rows(oracles.point_steps("pointmaze-medium-v0", seed, np.random.default_rng(seed), tasks, steps))


def cube(episodes: int, steps: int, seed: int) -> Rows:
    """Rows of `cube-single-play`: open-loop plans carry the cube to within a centimetre of goals, with smooth noise."""
    places = cycle(np.array(place) + np.array([[-0.01, -0.01], [0.01, 0.01]]) for place in _PLACES)

    def place(arm: Any) -> None:
        arm._target_sampling_bounds = next(places)

    return _rows(islice(oracles.cube_steps("cube-single-v0", seed, place, steps), episodes * steps))


def _rows(steps: Iterable[oracles.Step]) -> Rows:
    rows: Rows = {}
    for step in steps:
        row = {"observations": step.observation, "actions": step.action, "terminals": step.end}
        for key, value in (row | {key: step.info[name] for key, name in _STATES.items()}).items():
            rows.setdefault(key, []).append(value)
    return rows
