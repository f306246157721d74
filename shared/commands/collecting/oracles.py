"""Data from OGBench's own environments and scripted policies, for goal-conditioned algorithms.

The recipes are from OGBench's published files. A point wanders from goal to goal in a maze, or an arm carries a cube
from place to place by open-loop plans. Trajectories have 1001 rows.

Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, 2024, https://arxiv.org/abs/2410.20092
"""

import importlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from tqdm import tqdm

from shared.envs.ogbench import of_the_package
from shared.envs.registry import make_env
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


def _point(name: str, size: int, seed: int) -> tuple[Arrays, float]:
    """A point on its way through a maze: each goal, once reached, is followed by the next."""
    rng = np.random.default_rng(seed)

    def tasks(maze: Any) -> tuple[Iterator[dict[str, Any]], Iterator[tuple[int, int]]]:
        free = [(i, j) for i, j in np.ndindex(maze.maze_map.shape) if not maze.maze_map[i, j]]
        corners = [cell for cell in free if not _is_corridor(maze.maze_map, *cell)]
        goals = (corners[rng.integers(len(corners))] for _ in count())
        return ({"init_ij": free[rng.integers(len(free))], "goal_ij": next(goals)} for _ in count()), goals

    return _recorded(point_steps(name, seed, rng, tasks), size)


def _is_corridor(walls: np.ndarray, i: int, j: int) -> bool:
    """Whether a free cell of a maze leads straight on, between two walls."""
    across, along = walls[i - 1, j] + walls[i + 1, j], walls[i, j - 1] + walls[i, j + 1]
    return {across, along} == {0, 2}


def _cube(name: str, size: int, seed: int) -> tuple[Arrays, float]:
    """An arm that carries a cube from place to place: each plan, once carried out, is followed by the next."""
    return _recorded(cube_steps(name, seed), size)


class Step(NamedTuple):
    """A step of a scripted policy.

    Attributes:
        observation: The state in which it acts.
        action: Its action.
        end: Whether the trajectory ends with this step.
        success: Whether a goal was sought up to this step, and if so whether it was reached; None if not.
        info: What the environment tells after the step.
    """

    observation: np.ndarray
    action: np.ndarray
    end: bool
    success: bool | None
    info: dict[str, Any]


def point_steps(
    name: str, seed: int, rng: np.random.Generator, tasks: Callable[[Any], Any], steps: int = _STEPS
) -> Generator[Step, None, None]:
    """Steps of a point that moves towards its goals with noise, in one trajectory after another.

    Args:
        name: The package's maze.
        seed: The first trajectory's seed; each further trajectory has the next one.
        rng: Draws the noise.
        tasks: Maps the maze to an iterator of starts and first goals, and to one of further goals.
        steps: The length of a trajectory.
    """
    with _made(name, seed, max_episode_steps=steps) as env:
        maze: Any = env.unwrapped
        begins, goals = tasks(maze)
        for episode, task in enumerate(begins):
            observation, _ = env.reset(seed=seed + episode, options={"task_info": task})
            end = False
            while not end:
                here = maze.get_xy()
                way = maze.get_oracle_subgoal(here, maze.cur_goal_xy)[0] - here
                action = np.clip(way / (np.linalg.norm(way) + 1e-6) + rng.normal(0, _POINT_NOISE, 2), -1, 1)
                after, _, _, end, info = env.step(action)
                success = True if info["success"] else False if end else None
                yield Step(observation, action, end, success, info)
                observation = after
                if success:
                    maze.set_goal(goal_xy=maze.ij_to_xy(next(goals)))


def cube_steps(
    name: str, seed: int, place: Callable[[Any], None] = lambda arm: None, steps: int = _STEPS
) -> Generator[Step, None, None]:
    """Steps of an arm that follows open-loop plans with smooth noise, in one trajectory after another.

    Args:
        name: The package's environment with a cube.
        seed: The first trajectory's seed; each further trajectory has the next one.
        place: Called with the environment before each new target, which it may confine.
        steps: The length of a trajectory.
    """
    with _made(name, seed, max_episode_steps=steps, mode="data_collection") as env:
        plans: Any = importlib.import_module("ogbench.manipspace.oracles.plan.cube_plan")
        arm: Any = env.unwrapped
        plan = plans.CubePlanOracle(env=env, noise=_PLAN_NOISE, noise_smoothing=_SMOOTHING)
        for episode in count():
            place(arm)
            observation, info = env.reset(seed=seed + episode)
            plan.reset(observation, info)
            end = False
            while not end:
                action = np.clip(plan.select_action(observation, info), -1, 1)
                after, _, _, end, info = env.step(action)
                yield Step(observation, action, end, bool(info["success"]) if plan.done else None, info)
                observation = after
                if plan.done:
                    place(arm)
                    observation, info = arm.set_new_target(p_stack=0)
                    plan.reset(observation, info)


@contextmanager
def _made(name: str, seed: int, **settings: Any) -> Iterator[gymnasium.Env]:
    """The package's environment, which never ends in a goal; it and its oracle draw from NumPy's global generator."""
    env, before = of_the_package(name, terminate_at_goal=False, **settings), np.random.get_state()
    np.random.seed(seed)
    try:
        yield env
    finally:
        np.random.set_state(before)
        env.close()


def _recorded(steps: Generator[Step, None, None], size: int) -> tuple[Arrays, float]:
    """Whole trajectories of at least `size` rows, in D4RL's layout, and the share of the goals that were reached."""
    kept: list[Step] = []
    with closing(steps), tqdm(total=size, desc="recording", unit=" rows", disable=None) as bar:
        for step in steps:
            # What the environment tells would fill the memory.
            kept.append(step._replace(info={}))
            bar.update(1)
            if step.end and len(kept) >= size:
                break
    sought = [step.success for step in kept if step.success is not None]
    return {
        "observations": np.array([step.observation for step in kept], np.float32),
        "actions": np.array([step.action for step in kept], np.float32),
        "rewards": np.zeros(len(kept), np.float32),
        "terminals": np.zeros(len(kept), bool),
        "timeouts": np.array([step.end for step in kept]),
    }, float(np.mean(sought)) if sought else 0.0
