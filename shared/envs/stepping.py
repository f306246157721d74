"""The stepping of one environment, episode after episode."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np

from shared.envs.registry import make_env


class Step(NamedTuple):
    """One step of an environment.

    Attributes:
        observation: (S,) float32, before the step.
        action: (A,) float32, as it was given.
        reward: Of the step.
        next_observation: (S,), after it, also where the episode ended.
        terminal: Whether the robot fell or the goal was reached.
        timeout: Whether the time limit cut the episode; never where `terminal` is set.
        qpos: (Q,), the simulator's positions before the step; Q is 0 outside MuJoCo.
        qvel: (V,), its velocities.
    """

    observation: np.ndarray
    action: np.ndarray
    reward: float
    next_observation: np.ndarray
    terminal: bool
    timeout: bool
    qpos: np.ndarray
    qvel: np.ndarray


class Stepper:
    """Steps one environment; call `begin` before the first step.

    Attributes:
        state_dim: S.
        action_dim: A.
        max_action: Bound of every action component.
        physics_dims: Q and V.
        observation: (S,) float32, where the environment stands.
    """

    def __init__(self, env_id: str) -> None:
        """Makes the environment.

        Raises:
            InputError: The environment is unknown.
        """
        self._env = make_env(env_id)
        observations, actions = self._env.observation_space, self._env.action_space
        assert isinstance(observations, gymnasium.spaces.Box)
        assert isinstance(actions, gymnasium.spaces.Box)
        (self.state_dim,), (self.action_dim,) = observations.shape, actions.shape
        self.max_action = actions.high[0]
        self.physics_dims = tuple(len(values) for values in self._physics())

    def begin(self, *seeds: int) -> None:
        """Starts an episode that follows, like those after it, from these numbers alone."""
        seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
        self.observation = self._env.reset(seed=seed)[0].astype(np.float32)

    def step(self, action: np.ndarray) -> Step:
        """Takes an action (A,); after an episode's end the next one begins."""
        before, action = self.observation, np.asarray(action, np.float32)
        # Copies, since the simulator overwrites its own.
        qpos, qvel = (values.copy() for values in self._physics())
        observation, reward, fell, timeout, _ = self._env.step(action)
        following = self._env.reset()[0] if fell or timeout else observation
        self.observation = following.astype(np.float32)
        # D4RL's collector asked for the time limit first: a fall on the last step counts as a timeout.
        return Step(before, action, float(reward), observation, fell and not timeout, timeout, qpos, qvel)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _physics(self) -> tuple[np.ndarray, np.ndarray]:
        data: Any = getattr(self._env.unwrapped, "data", None)
        return (np.empty(0), np.empty(0)) if data is None else (data.qpos, data.qvel)
