"""Data from OGBench's own environments and scripted policies, for goal-conditioned algorithms.

The recipes are from OGBench's published files. A point wanders from goal to goal in a maze, or an arm carries a cube
from place to place by open-loop plans. Trajectories have 1001 rows.

Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, 2024, https://arxiv.org/abs/2410.20092
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from tqdm import tqdm

from shared.envs.registry import make_env
from shared.errors import InputError
from shared.names import OGBENCH_ENVS, OGBENCH_SETS

_STEPS = 1001
# Episodes of the five tasks, in turn, with which a success is measured
_EPISODES = 50
# Deviation of the noise on a point's actions, and of that on a plan's
_POINT_NOISE, _PLAN_NOISE, _SMOOTHING = 0.5, 0.1, 0.5
# Arrays of a dataset, by name
Arrays = dict[str, np.ndarray]


class Oracle(NamedTuple):
    """A scripted policy in an environment.

    Attributes:
        env_id: The environment of the policies that learn from it.
        record: Maps a number of rows and a seed to the data, and to the share of its goals that the oracle reached.
    """

    env_id: str
    record: Callable[[int, int], tuple[Arrays, float]]


def names() -> list[str]:
    """The datasets that oracles can make."""
    return [*(env + "-navigate" for env in OGBENCH_SETS if env.startswith("pointmaze")), "cube-single-play"]


def oracle(name: str) -> Oracle:
    """The oracle of one of these `names`."""
    env = name.rpartition("-")[0]
    record = _point if env.startswith("pointmaze") else _cube
    return Oracle(f"{OGBENCH_ENVS}{env}-v0", lambda rows, seed: record(f"{env}-v0", rows, seed))


def random_success(env_id: str, seed: int) -> float:
    """The share of episodes in which uniformly random actions reach the goal."""
    env, rng, successes = make_env(env_id), np.random.default_rng(seed), []
    tasks = env.get_wrapper_attr("tasks")
    actions: Any = env.action_space
    for episode in range(_EPISODES):
        env.reset(seed=seed + episode, options=tasks[episode % len(tasks)])
        ended, info = False, {"goal_achieved": False}
        while not ended:
            _, _, terminated, truncated, info = env.step(rng.uniform(actions.low, actions.high).astype(np.float32))
            ended = terminated or truncated
        successes.append(info["goal_achieved"])
    env.close()
    return float(np.mean(successes))


@contextmanager
def _made(name: str, seed: int, **settings: Any) -> Iterator[gymnasium.Env]:
    """The package's environment, which never ends in a goal; it and its oracle draw from NumPy's global generator."""
    try:
        importlib.import_module("ogbench")
    except ImportError as error:
        raise InputError(f"OGBench's {name!r} needs its package: pip install 'corl-twins[ogbench]'") from error
    env, before = (
        gymnasium.make(name, terminate_at_goal=False, max_episode_steps=_STEPS, **settings),
        np.random.get_state(),
    )
    np.random.seed(seed)
    try:
        yield env
    finally:
        np.random.set_state(before)
        env.close()


def _point(name: str, size: int, seed: int) -> tuple[Arrays, float]:
    """A point on its way through a maze: each goal, once reached, is followed by the next."""
    rows, rng, reached, sought = _Rows(size), np.random.default_rng(seed), 0, 0
    with _made(name, seed) as env:
        maze: Any = env.unwrapped
        free = [(i, j) for i, j in np.ndindex(maze.maze_map.shape) if not maze.maze_map[i, j]]
        corners = [cell for cell in free if not _is_corridor(maze.maze_map, *cell)]

        def goal() -> tuple[int, int]:
            return corners[rng.integers(len(corners))]

        for episode in count():
            task = {"init_ij": free[rng.integers(len(free))], "goal_ij": goal()}
            observation, _ = env.reset(seed=seed + episode, options={"task_info": task})
            sought += 1
            done = False
            while not done:
                here = maze.get_xy()
                way = maze.get_oracle_subgoal(here, maze.cur_goal_xy)[0] - here
                noise = rng.normal(0, _POINT_NOISE, 2)
                action = np.clip(way / (np.linalg.norm(way) + 1e-6) + noise, -1, 1)
                after, _, _, done, info = env.step(action)
                rows.add(observation, action, done)
                observation = after
                if info["success"]:
                    reached, sought = reached + 1, sought + (not done)
                    maze.set_goal(goal_xy=maze.ij_to_xy(goal()))
            if rows.enough:
                return rows.arrays(), reached / sought
    raise AssertionError("episodes never end")


def _is_corridor(walls: np.ndarray, i: int, j: int) -> bool:
    """Whether a free cell of a maze leads straight on, between two walls."""
    across, along = walls[i - 1, j] + walls[i + 1, j], walls[i, j - 1] + walls[i, j + 1]
    return {across, along} == {0, 2}


def _cube(name: str, size: int, seed: int) -> tuple[Arrays, float]:
    """An arm that carries a cube from place to place: each plan, once carried out, is followed by the next."""
    plans: Any = importlib.import_module("ogbench.manipspace.oracles.plan.cube_plan")
    rows, reached, sought = _Rows(size), 0, 0
    with _made(name, seed, mode="data_collection") as env:
        arm: Any = env.unwrapped
        plan = plans.CubePlanOracle(env=env, noise=_PLAN_NOISE, noise_smoothing=_SMOOTHING)
        for episode in count():
            observation, info = env.reset(seed=seed + episode)
            plan.reset(observation, info)
            done = False
            while not done:
                action = np.clip(plan.select_action(observation, info), -1, 1)
                after, _, _, done, info = env.step(action)
                rows.add(observation, action, done)
                observation = after
                if plan.done:
                    reached, sought = reached + bool(info["success"]), sought + 1
                    observation, info = arm.set_new_target(p_stack=0)
                    plan.reset(observation, info)
            if rows.enough:
                return rows.arrays(), reached / max(sought, 1)
    raise AssertionError("episodes never end")


class _Rows:
    """The rows of whole trajectories, in D4RL's layout; rewards and terminals are 0."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._observations: list[np.ndarray] = []
        self._actions: list[np.ndarray] = []
        self._ends: list[bool] = []
        self._bar = tqdm(total=size, desc="recording", unit=" rows", disable=None)

    def add(self, observation: np.ndarray, action: np.ndarray, end: bool) -> None:
        """Adds a step."""
        self._observations.append(np.asarray(observation, np.float32))
        self._actions.append(np.asarray(action, np.float32))
        self._ends.append(bool(end))
        self._bar.update(1)

    @property
    def enough(self) -> bool:
        """Whether there are as many rows as wanted."""
        return len(self._ends) >= self._size

    def arrays(self) -> Arrays:
        """The columns."""
        self._bar.close()
        return {
            "observations": np.array(self._observations),
            "actions": np.array(self._actions),
            "rewards": np.zeros(len(self._ends), np.float32),
            "terminals": np.zeros(len(self._ends), bool),
            "timeouts": np.array(self._ends),
        }
