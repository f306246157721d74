"""OGBench's single tasks: names, ends, seeds, leftover files, and the score of an evaluation."""

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from shared import names
from shared.envs.evaluation import Evaluator, SuccessEvaluation
from shared.envs.goals import has_goals
from shared.envs.registry import fingerprint, least_memory, make_env, time_limit
from shared.envs.scores import Scale, scale
from shared.envs.stepping import Stepper
from shared.errors import InputError
from tests import ogbench_files

pytestmark = ogbench_files.NEEDS_OGBENCH


POINT, CUBE = "ogbench/pointmaze-medium-singletask-task1-v0", "ogbench/cube-single-singletask-v0"
TELEPORT = "ogbench/pointmaze-teleport-singletask-v0"
# Positions in task 1 of the point's maze: within a unit of the goal, and far from everything
GOAL, FAR = (20.0, 20.0), (0.0, 0.0)


def test_every_task_has_its_packages_time_limit() -> None:
    """Neither 1000 steps everywhere nor the length of the data's trajectories."""
    importlib.import_module("ogbench")  # which registers its own names
    tasks = [env_id for env_id in gymnasium.registry if env_id.startswith(names.OGBENCH_ENVS)]
    assert len(tasks) == 7 * len(names.OGBENCH_SETS) == 7 * 22
    for env_id in tasks:
        assert time_limit(env_id) == time_limit(env_id.removeprefix(names.OGBENCH_ENVS)), env_id
    assert (time_limit(CUBE), time_limit("ogbench/humanoidmaze-giant-singletask-v0")) == (200, 4000)


def trace(env: gymnasium.Env, seed: int, steps: int = 30) -> np.ndarray:
    """The observations of an episode with fixed actions."""
    rng = np.random.default_rng(0)
    seen = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        seen.append(env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))[0])
    return np.array(seen)


@pytest.mark.thorough
@pytest.mark.parametrize("env_id", [POINT, CUBE, TELEPORT])
def test_an_episode_follows_from_its_seed_alone(env_id: str) -> None:
    """In a used environment and in a new one, whatever else draws; the global generator is unchanged."""
    used = make_env(env_id)
    first = trace(used, 5)
    assert not np.array_equal(trace(used, 6)[0], first[0])
    assert_array_equal(trace(used, 5), first)
    np.random.seed(3)
    expected = np.random.RandomState(3).random(2)
    drawn = [np.random.random()]
    new = make_env(env_id)
    assert_array_equal(trace(new, 5), first)
    assert_array_equal([*drawn, np.random.random()], expected)
    for env in (used, new):
        env.close()


def test_a_point_that_is_teleported_draws_from_its_own_generator() -> None:
    """Its destination is drawn within the step itself."""

    def places(seed: int) -> list[tuple[float, ...]]:
        env, found = make_env(TELEPORT), []
        maze: Any = env.unwrapped
        env.reset(seed=seed)
        for _ in range(8):
            maze.set_xy(maze._teleport_info["teleport_in_xys"][0])
            env.step(np.zeros(2, np.float32))
            found.append(tuple(maze.get_xy().round(3).tolist()))
        env.close()
        return found

    np.random.seed(0)
    before = np.random.get_state()[1:3]
    first = places(4)
    assert len(set(first)) > 1
    assert places(4) == first != places(5)
    for now, then in zip(np.random.get_state()[1:3], before, strict=True):
        assert_array_equal(now, then)


def test_threads_do_not_disturb_each_other() -> None:

    def starts(env: gymnasium.Env) -> list[list[float]]:
        return [env.reset(seed=seed)[0].tolist() for seed in range(40)]

    expected = starts(make_env(POINT))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads also switch within a reset
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(starts, [make_env(POINT) for _ in range(4)])) == [expected] * 4
    finally:
        sys.setswitchinterval(interval)


def test_a_maze_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package writes a file for each maze, and keeps both the file and its descriptor."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = Path("/proc/self/fd")
    before = len(os.listdir(folder)) if folder.is_dir() else 0
    made = [make_env(POINT) for _ in range(3)]
    assert list(tmp_path.iterdir()) == []
    assert (len(os.listdir(folder)) if folder.is_dir() else 0) == before
    for env in made:
        env.close()


def placed(*places: tuple[float, float]) -> Callable[[str], gymnasium.Env]:
    """Makes a maze whose episodes begin at these places, one after another."""
    waiting = list(places)

    class Placed(gymnasium.Wrapper):
        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            _, info = self.env.reset(**options)
            self.env.unwrapped.set_xy(waiting.pop(0))
            return np.asarray(self.env.unwrapped.get_ob()), info

    return lambda env_id: Placed(make_env(env_id))


def still(observations: np.ndarray) -> np.ndarray:
    """A policy that does not move."""
    return np.zeros((len(observations), 2), np.float32)


def test_the_score_is_the_share_of_episodes_that_end_in_the_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In percent. An episode ends with the step that begins in the goal, and its return does not affect the score."""
    evaluator = Evaluator(POINT, 4, seed=0, num_envs=1, make=placed(GOAL, FAR, GOAL, GOAL))
    assert (evaluator.outcomes, evaluator.has_goals, evaluator.max_action) == ("successes", True, 1.0)
    assert evaluator.fingerprint["env"] == POINT
    found = evaluator(still)
    assert found.outcomes.tolist() == [1.0, 0.0, 1.0, 1.0]
    assert found.returns.tolist() == [0.0, -1000.0, 0.0, 0.0]
    assert found.lengths.tolist() == [1, 1000, 1, 1]
    assert found.row()["successes"] == [1.0, 0.0, 1.0, 1.0]
    assert evaluator.scale(found.outcomes).mean() == 75.0
    assert evaluator.scale.told(found.outcomes) == "success in % 75.0"
    evaluator.close()


def test_an_evaluation_is_repeated_to_the_bit() -> None:
    """By another evaluator and with another number of environments, whatever is drawn in between."""
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(2, 2)).astype(np.float32)

    def wander(observations: np.ndarray) -> np.ndarray:
        return np.tanh(np.sin(3 * observations) @ weights)

    found = []
    for num_envs in (1, 3):
        evaluator = Evaluator(POINT, 3, seed=7, num_envs=num_envs, max_steps=80)
        np.random.seed(num_envs)
        found.append(evaluator(wander))
        evaluator.close()
    for first, second in zip(*found, strict=True):
        assert_array_equal(first, second)


def test_the_goal_is_told_a_step_late_and_is_never_a_time_limit() -> None:
    """As in the data, whose rewards are those of the state in which a step begins."""
    stepper = Stepper(POINT)
    stepper.begin(0)
    maze: Any = stepper._env.unwrapped
    maze.set_xy((18.9, 20.0))
    towards = stepper.step(np.array([1.0, 0.0]))
    assert (towards.paid, towards.terminal, towards.goal) == (-1.0, False, False)
    reached = stepper.step(np.zeros(2))
    assert (reached.paid, reached.terminal, reached.timeout, reached.goal) == (0.0, True, False, True)
    stepper.close()


def test_what_is_reported_where() -> None:
    assert scale(CUBE) == Scale("success_percent", "success in %", (0.0, 1.0), "successes")
    assert has_goals(CUBE)
    assert has_goals(POINT)
    assert least_memory(CUBE) > 0


def test_a_cubes_environment_can_be_told_and_seen() -> None:
    env = make_env(CUBE)
    facts = fingerprint(CUBE, env)
    assert (facts["env"], facts["d4rl_exact"]) == (CUBE, False)
    assert facts["total_mass"] > 1
    assert (env.observation_space.shape, env.action_space.shape) == ((28,), (5,))
    env.close()


def test_a_task_without_its_package_says_what_to_install() -> None:
    """In one line; other environments do not need the package."""
    code = (
        "import sys; sys.modules['ogbench'] = None; from shared.envs.registry import make_env; make_env('CartPole-v1');"
        f"make_env('{CUBE}')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert told.strip().splitlines()[-1].endswith("needs its package: pip install 'corl-twins[ogbench]'")


def test_an_unknown_task_is_told_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown environment 'ogbench/cube-singel-singletask-v0'; use ogbench/cube-"):
        make_env("ogbench/cube-singel-singletask-v0")


GOALS = ("ogbench/pointmaze-medium-v0", "ogbench/cube-single-v0")


@pytest.mark.thorough
@pytest.mark.parametrize("env_id", GOALS)
def test_an_episode_with_a_goal_depends_on_its_seed_alone(env_id: str) -> None:
    """Also the goal, before which the package takes random actions, and whatever came before."""
    first, other = make_env(env_id), make_env(env_id)
    other.reset(seed=8, options={"task_id": 2})
    shown = [env.reset(seed=3, options={"task_id": 1})[0] for env in (first, other)]
    for key in ("observation", "desired_goal"):
        assert np.array_equal(shown[0][key], shown[1][key])
    assert not np.array_equal(shown[0]["desired_goal"], other.reset(seed=4, options={"task_id": 1})[0]["desired_goal"])
    for env in (first, other):
        env.close()


@pytest.mark.thorough
def test_a_row_of_metrics_has_each_tasks_share() -> None:
    """Episode k played task k modulo five; with fewer episodes, the last tasks have no share."""
    successes = np.array([True, False, True, True, False, False, False])
    row = SuccessEvaluation(np.zeros(7), np.ones(7, int), successes, tasks=5).row()
    assert [row[f"task_{number}_success_percent"] for number in range(1, 6)] == [50.0, 0.0, 100.0, 100.0, 0.0]
    few = SuccessEvaluation(np.zeros(2), np.ones(2, int), successes[:2], tasks=5).row()
    assert [name for name in few if name.startswith("task_")] == ["task_1_success_percent", "task_2_success_percent"]
    assert not any(name.startswith("task_") for name in SuccessEvaluation(np.zeros(1), np.ones(1), successes[:1]).row())


def test_an_evaluation_takes_the_five_tasks_in_turn_and_gives_the_policy_their_goals() -> None:
    """A policy that knows the way reaches every goal; one that stands still reaches none."""
    evaluator = Evaluator(GOALS[0], n_episodes=10, seed=0)
    maze: Any = make_env(GOALS[0]).unwrapped
    maze.reset(seed=0)
    seen: list[np.ndarray] = []

    def ahead(observations: np.ndarray, goals: np.ndarray) -> np.ndarray:
        seen.append(goals)
        ways = [maze.get_oracle_subgoal(xy, goal)[0] - xy for xy, goal in zip(observations, goals, strict=True)]
        return np.clip(ways, -1.0, 1.0).astype(np.float32)

    try:
        assert evaluator.state_dim == 2
        assert evaluator.sets_goals
        played = evaluator(ahead)
        assert played.outcomes.tolist() == [1.0] * 10
        assert all(np.array_equal(goals, seen[0]) for goals in seen)
        cells = [maze.xy_to_ij(goal) for goal in seen[0]]
        tasks = [info["goal_ij"] for info in maze.task_infos]
        # A goal is up to a unit beside the middle of its cell.
        assert [tuple(cell) for cell in cells] == [tuple(task) for task in tasks] * 2
        assert not evaluator(lambda observations, goals: np.zeros((10, 2), np.float32)).successes.any()
    finally:
        evaluator.close()
