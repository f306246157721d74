"""Steps one environment, episode after episode."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shared.envs.boxes import NEUTRAL, ActionUnits
from shared.envs.goals import is_goal
from shared.envs.images import stacked
from shared.envs.registry import MAX_EPISODE_STEPS, make_env, time_limit
from shared.envs.spaces import kept_as, spaces_of


class Step(NamedTuple):
    """One step of an environment.

    Attributes:
        observation: (S,) float32, or an image (C, H, W) of bytes, before the step.
        action: (A,) float32, as given to the environment; () int64 for finite actions.
        reward: The reward from which to learn.
        next_observation: The observation after the step, of the same shape, even at the end of an episode.
        terminal: Whether the robot fell or the goal was reached.
        timeout: Whether the time limit cut the episode; never together with `terminal`.
        qpos: (Q,), the simulator's positions before the step; Q is 0 outside MuJoCo.
        qvel: (V,), the simulator's velocities before the step.
        paid: The environment's own reward.
        goal: Whether the step reached the task's goal.
    """

    observation: np.ndarray
    action: np.ndarray
    reward: float
    next_observation: np.ndarray
    terminal: bool
    timeout: bool
    qpos: np.ndarray
    qvel: np.ndarray
    paid: float
    goal: bool


class Stepper:
    """Steps one environment; call `begin` before the first step.

    Attributes:
        state_dim: S, or (C, H, W) for images.
        actions: The environment's actions.
        units: Converts a policy's actions to the environment's.
        physics_dims: Q and V.
        observation: The current observation, (S,) float32, or (C, H, W) bytes.
    """

    def __init__(
        self,
        env_id: str,
        mean: ArrayLike = 0.0,
        std: ArrayLike = 1.0,
        learnt: Callable[[float], float] = lambda reward: reward,
        frame_stack: int = 1,
        max_episode_steps: int | None = None,
        units: ActionUnits | None = None,
    ) -> None:
        """Makes the environment.

        Args:
            env_id: The name of the environment.
            mean: Subtracted from each observation, a number or (S,), in double precision.
            std: Divides each observation after that.
            learnt: Maps the environment's reward to the one from which to learn.
            frame_stack: Number of frames in an observation of images, the newest last.
            max_episode_steps: The step after which an episode is cut; None means the environment's own time limit, or
                `MAX_EPISODE_STEPS` if it has none.
            units: Converts a policy's actions to the environment's; None if they are the same.

        Raises:
            InputError: The environment is unknown, or its spaces cannot be used.
        """
        if max_episode_steps is None and time_limit(env_id) is None:
            max_episode_steps = MAX_EPISODE_STEPS
        self._env = stacked(make_env(env_id, max_episode_steps), frame_stack)
        self._mean, self._std, self._learnt = np.asarray(mean), np.asarray(std), learnt
        self.state_dim, self.actions = spaces_of(env_id, self._env)
        self.units = units or replace(NEUTRAL, bound=self.actions.bound)
        self.physics_dims = tuple(len(values) for values in self._physics())

    def begin(self, *seeds: int) -> None:
        """Starts an episode; it and all later ones only depend on these numbers."""
        seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
        self._stand(self._normalised(self._env.reset(seed=seed)[0]))

    def step(self, action: np.ndarray, then: tuple[int, ...] | None = None) -> Step:
        """Takes an action of the environment, (A,) or a finite one; after the end of an episode, the next one begins.

        Args:
            action: The action.
            then: Numbers that determine the next episode; None if it should depend on the episodes before it.
        """
        before, action = self.observation, np.asarray(action, self.actions.dtype)
        # Copies, because the simulator overwrites its own arrays
        qpos, qvel = (values.copy() for values in self._physics())
        observation, reward, fell, timeout, info = self._env.step(self.actions.given(action))
        after, paid = self._normalised(observation), float(reward)
        if not (fell or timeout):
            self._stand(after)
        elif then is None:
            self._stand(self._normalised(self._env.reset()[0]))
        else:
            self.begin(*then)
        # D4RL's collector checked the time limit first, so a fall on the last step counts as a timeout.
        ends = bool(fell and not timeout), bool(timeout)
        return Step(before, action, self._learnt(paid), after, *ends, qpos, qvel, paid, is_goal(paid, info))

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _stand(self, observation: np.ndarray) -> None:
        self.observation = observation.astype(kept_as(self.state_dim))

    def _normalised(self, observation: np.ndarray) -> np.ndarray:
        return (observation - self._mean) / self._std if isinstance(self.state_dim, int) else observation

    def _physics(self) -> tuple[np.ndarray, np.ndarray]:
        data: Any = getattr(self._env.unwrapped, "data", None)
        return (np.empty(0), np.empty(0)) if data is None else (data.qpos, data.qvel)
