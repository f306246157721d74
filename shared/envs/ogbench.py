"""OGBench's environments with states: `ogbench/cube-single-v0` has goals, `ogbench/cube-single-singletask-v0` one task.

The simulators, tasks, rewards and ends of episodes are from its package, an extra: `pip install 'corl-twins[ogbench]'`.
With a single task, a step's reward and success refer to the state in which its action was taken. Therefore the last
step is the one that begins in the goal. With goals, they refer to the state that the step reaches.

Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, 2024, https://arxiv.org/abs/2410.20092
"""

import contextlib
import importlib
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

from shared.errors import InputError
from shared.names import OGBENCH_ENVS, OGBENCH_SETS, OGBENCH_TASKS

# Time limits in steps, if they are not 1000
_LIMITS = {
    "humanoidmaze-medium": 2000,
    "humanoidmaze-large": 2000,
    "humanoidmaze-giant": 4000,
    "cube-single": 200,
    "cube-double": 500,
    "scene": 750,
    "puzzle-3x3": 500,
    "puzzle-4x4": 500,
}
# NumPy's global generator belongs to the process, so evaluations in several threads take turns.
_DRAWING = threading.Lock()


class _Task(gymnasium.Wrapper):
    """A single task, whose episodes only depend on their seeds.

    Its environment draws from NumPy's global generator. During a draw, that generator has a state of this task's own,
    so training's draws do not change.
    """

    def __init__(self, env: gymnasium.Env, draws_in_steps: bool) -> None:
        """Begins an episode, because some environments have no model and no sizes before; creates each space once.

        Args:
            env: OGBench's environment.
            draws_in_steps: Whether its steps also draw from the global generator.
        """
        super().__init__(env)
        self._draws_in_steps = draws_in_steps
        self._state: Any = np.random.RandomState(0).get_state()
        self.reset(seed=0)
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode of the task; it ignores options."""
        if seed is not None:
            self._state = np.random.RandomState(seed).get_state()
        with self._own_draws(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about bounds of actions that some environments rewrite
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step; `goal_achieved` says whether the task is done."""
        with self._own_draws() if self._draws_in_steps else contextlib.nullcontext():
            observation, reward, terminated, truncated, info = self.env.step(action)
        info["goal_achieved"] = bool(info["success"])
        return observation, reward, bool(terminated), bool(truncated), info

    @contextlib.contextmanager
    def _own_draws(self) -> Iterator[None]:
        with _DRAWING:
            before = np.random.get_state()
            np.random.set_state(self._state)
            try:
                yield
            finally:
                self._state = np.random.get_state()
                np.random.set_state(before)


class _Goals(_Task):
    """Five tasks, each with a start and a goal; an observation holds the state and the goal, a state to be reached.

    Attributes:
        tasks: The options of `reset` for each task. Without options, the seed chooses the task.
    """

    tasks = tuple({"task_id": number} for number in range(1, 6))

    def __init__(self, env: gymnasium.Env, draws_in_steps: bool) -> None:
        """Begins an episode, like a single task's environment, and keeps one action space."""
        # Some of these environments create their action space anew at each use. No seed would reach the random actions
        # that a reset takes before it observes the goal.
        kind, self._actions = type(env.unwrapped), env.unwrapped.action_space
        env.unwrapped.__class__ = type(kind.__name__, (kind,), {"action_space": self._actions})
        super().__init__(env, draws_in_steps)
        space = env.observation_space
        self.observation_space = gymnasium.spaces.Dict({"observation": space, "desired_goal": space})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode of the task that the options name."""
        if seed is not None:
            self._actions.seed(seed)
        state, info = super().reset(seed=seed, options=options)
        self._goal = info["goal"]
        return self._with_goal(state), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step; `goal_achieved` says whether it reached the goal."""
        state, *others = super().step(action)
        return self._with_goal(state), *others

    def _with_goal(self, state: np.ndarray) -> dict[str, np.ndarray]:
        return {"observation": state, "desired_goal": self._goal}


def _make(name: str, render_mode: str | None = None) -> gymnasium.Env:
    """Creates the environment `name`, which renders images whatever `render_mode` is.

    Raises:
        InputError: The package is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dm_control looks for a display
        env = of_the_package(name, disable_env_checker=True, max_episode_steps=-1)
        kind = _Task if "singletask" in name else _Goals
        return kind(env, draws_in_steps="teleport" in name)


def of_the_package(name: str, **settings: Any) -> gymnasium.Env:
    """Creates the package's own environment `name`, which draws from NumPy's global generator.

    Raises:
        InputError: The package is not installed.
    """
    try:
        importlib.import_module("ogbench")
    except ImportError as error:
        raise InputError(f"OGBench's {name!r} needs its package: pip install 'corl-twins[ogbench]'") from error
    with _no_files_left():
        return gymnasium.make(name, **settings)


@contextlib.contextmanager
def _no_files_left() -> Iterator[None]:
    """Removes what each new maze leaves behind: the file of its model, and that file's open descriptor."""
    module: Any = importlib.import_module("ogbench.locomaze.maze")
    made: list[str] = []

    def mkstemp(**options: Any) -> tuple[int, str]:
        descriptor, path = tempfile.mkstemp(**options)
        os.close(descriptor)
        made.append(path)
        return descriptor, path

    with _DRAWING:
        before, module.tempfile = module.tempfile, SimpleNamespace(mkstemp=mkstemp)
        try:
            yield
        finally:
            module.tempfile = before
            for path in made:
                os.unlink(path)


def register() -> None:
    """Registers the environments with Gymnasium: with goals, and each of five tasks; without a number its default."""
    for env in OGBENCH_SETS:
        for task in ("", *(f"-singletask{task}" for task in OGBENCH_TASKS)):
            name = f"{env}{task}-v0"
            gymnasium.register(
                f"{OGBENCH_ENVS}{name}",
                entry_point=f"{__name__}:_make",
                kwargs={"name": name},
                max_episode_steps=_LIMITS.get(env, 1000),
            )
