"""Small files in OGBench's layout, made by its own environments and scripted policies.

The published files are made in the same way, with the same noise. Here the goals alternate between those of the five
tasks, so that a short file contains states in which a task is done, and data that continue after them.
"""

import importlib
import sys
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

# On Pythons with which the extra can be installed, a missing package is a failure.
NEEDS_OGBENCH = pytest.mark.skipif(
    sys.version_info >= (3, 13) and find_spec("ogbench") is None,
    reason="labmaze, which OGBench's extra asks for, has no wheel for this Python",
)

Rows = dict[str, list[Any]]
_STATES = {"qpos": "prev_qpos", "qvel": "prev_qvel"}
# The cube's targets in the five tasks of cube-single
_PLACES = ((0.425, -0.1), (0.5, 0.0), (0.35, 0.0), (0.5, 0.2), (0.5, -0.2))


def _make(name: str, **settings: Any) -> gymnasium.Env:
    """An environment of the package, which registers all of them when it is imported."""
    importlib.import_module("ogbench")
    return gymnasium.make(name, **settings)


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
    env = _make("pointmaze-medium-v0", terminate_at_goal=False, max_episode_steps=steps)
    maze: Any = env.unwrapped
    rng, before = np.random.default_rng(seed), np.random.get_state()
    np.random.seed(seed)  # the maze draws where the point starts
    tasks = maze.task_infos if task is None else maze.task_infos[task - 1 : task]
    goals = cycle(found["goal_ij"] for found in tasks)
    rows: Rows = {}
    for episode in range(episodes):
        start = next(goals) if task is None else tasks[0]["init_ij"]
        options = {"task_info": {"init_ij": start, "goal_ij": next(goals)}}
        observation, _ = env.reset(seed=seed + episode, options=options)
        done = False
        while not done:
            here = maze.get_xy()
            way = maze.get_oracle_subgoal(here, maze.cur_goal_xy)[0] - here
            action = np.clip(way / (np.linalg.norm(way) + 1e-6) + rng.normal(0, 0.5, 2), -1, 1)
            after, _, _, done, info = env.step(action)
            _append(rows, observation, action, done, info)
            observation = after
            if info["success"]:
                maze.set_goal(goal_xy=maze.ij_to_xy(next(goals)))
    np.random.set_state(before)
    env.close()
    return rows


def cube(episodes: int, steps: int, seed: int) -> Rows:
    """Rows of `cube-single-play`: open-loop plans carry the cube to within a centimetre of goals, with smooth noise."""
    from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle

    env = _make("cube-single-v0", terminate_at_goal=False, mode="data_collection", max_episode_steps=steps)
    arm: Any = env.unwrapped
    places = cycle(np.array(place) + np.array([[-0.01, -0.01], [0.01, 0.01]]) for place in _PLACES)
    before = np.random.get_state()
    np.random.seed(seed)  # the oracle draws its noise
    oracle = CubePlanOracle(env=env, noise=0.1, noise_smoothing=0.5)
    rows: Rows = {}
    for episode in range(episodes):
        arm._target_sampling_bounds = next(places)
        observation, info = env.reset(seed=seed + episode)
        oracle.reset(observation, info)
        done = False
        while not done:
            action = np.clip(oracle.select_action(observation, info), -1, 1)
            after, _, _, done, info = env.step(action)
            _append(rows, observation, action, done, info)
            observation = after
            if oracle.done:
                arm._target_sampling_bounds = next(places)
                observation, info = arm.set_new_target(p_stack=0)
                oracle.reset(observation, info)
    np.random.set_state(before)
    env.close()
    return rows


def _append(rows: Rows, observation: Any, action: Any, done: bool, info: dict[str, Any]) -> None:
    row = {"observations": observation, "actions": action, "terminals": done}
    for key, value in (row | {key: info[name] for key, name in _STATES.items()}).items():
        rows.setdefault(key, []).append(value)
