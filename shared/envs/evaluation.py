"""Runs a policy for a number of episodes, all of them stepped together."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from shared.envs.boxes import NEUTRAL, ActionUnits
from shared.envs.goals import has_goals, is_goal
from shared.envs.images import stacked
from shared.envs.registry import fingerprint, make_env
from shared.envs.scores import Scale, scale
from shared.envs.spaces import axes, kept_as, spaces_of
from shared.errors import InputError

Policy = Callable[[np.ndarray], np.ndarray]
"""Maps normalised observations (n_episodes, state_dim) float32, or images (n_episodes, C, H, W), to actions
(n_episodes, action_dim), or finite ones (n_episodes,)."""


class ContextPolicy(ABC):
    """A policy that remembers each episode, and is told how far it has come."""

    @abstractmethod
    def __call__(self, observations: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The actions of one step.

        Args:
            observations: (n_episodes, state_dim) float32, normalised.
            returns: (n_episodes,), the rewards of each episode so far, summed.
            lengths: (n_episodes,), its steps so far; 0 where it begins.

        Returns:
            Actions (n_episodes, action_dim), or finite ones (n_episodes,).
        """


class SampledPolicy(ContextPolicy):
    """A policy that draws random numbers at each step, from a generator of its own for each episode.

    So the draws of episode k depend on the seed and on k only, like its start state. They take nothing from the
    generators of training.
    """

    def __init__(
        self,
        act: Callable[[np.ndarray, np.ndarray], np.ndarray],
        draw: Callable[[np.random.Generator], np.ndarray],
        seed: int,
    ) -> None:
        """Draws nothing yet.

        Args:
            act: From observations (n_episodes, state_dim) and noise (n_episodes, ...) to actions.
            draw: The noise (...) of one step of one episode.
            seed: 0 or more.
        """
        self._act, self._draw, self._seed = act, draw, seed
        self._generators: dict[int, np.random.Generator] = {}

    def __call__(self, observations: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The actions of one step, as for any policy that remembers its episodes."""
        for episode in map(int, np.flatnonzero(lengths == 0)):
            self._generators[episode] = np.random.default_rng([self._seed, episode])
        noise = [self._draw(self._generators[episode]) for episode in range(len(observations))]
        return self._act(observations, np.stack(noise).astype(np.float32))


def epsilon_greedy(policy: Policy, epsilon: float, action_dim: int, seed: int) -> SampledPolicy:
    """A policy for finite actions that takes one of all at random, in a share `epsilon` of its steps.

    Each step draws a uniform number and an action, whatever becomes of them. So the steps of an episode draw the same
    numbers under every epsilon.

    Args:
        policy: From observations (n_episodes, state_dim) to actions (n_episodes,).
        epsilon: From 0 to 1.
        action_dim: How many actions there are.
        seed: As for any policy that samples.
    """

    def act(observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return np.where(noise[:, 0] < epsilon, noise[:, 1].astype(np.int64), policy(observations))

    def draw(rng: np.random.Generator) -> np.ndarray:
        return np.array([rng.random(), rng.integers(action_dim)])

    return SampledPolicy(act, draw, seed)


class Evaluation(NamedTuple):
    """Outcome of one evaluation.

    `returns` (n_episodes,) are undiscounted and not normalised, float64. `lengths` (n_episodes,) are steps.
    `successes` (n_episodes,) say whether a step of the episode reached the task's goal, where it has one.
    """

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray

    @property
    def outcomes(self) -> np.ndarray:
        """The returns, which score the policy."""
        return self.returns

    def row(self) -> dict[str, Any]:
        """The entries of a run's metrics."""
        mean = float(self.returns.mean())
        return {"return_mean": mean, "returns": self.returns.tolist(), "lengths": self.lengths.tolist()}


class SuccessEvaluation(Evaluation):
    """Outcome of one evaluation in an environment whose episodes succeed or fail, and are scored by that alone."""

    __slots__ = ()

    @property
    def outcomes(self) -> np.ndarray:
        """The outcomes that score the policy: 1 for each episode that succeeded, 0 for any other, float64."""
        return self.successes.astype(np.float64)

    def row(self) -> dict[str, Any]:
        """The entries of a run's metrics."""
        return {**super().row(), "successes": self.outcomes.tolist()}


class Evaluator:
    """Evaluates policies in one environment, each time from the same start states.

    Episode k starts from a state that depends on `seed` and k only. It owns row k of what the policy sees, whatever
    `num_envs` is. For a matrix product rounds differently with another number of rows, and a compiled policy is traced
    once per shape.

    Attributes:
        state_dim: Size of an observation, or of an image (C, H, W).
        actions: The environment's.
        action_dim: Size of an action; of finite actions, how many there are.
        max_action: Upper bound of the first action entry; 1 for finite actions.
        mean: Subtracted from each observation, () or (state_dim,).
        std: Then divides it, () or (state_dim,).
        units: From the policy's actions to the environment's.
        fingerprint: What a score depends on besides the policy: environment, MuJoCo version, mass, episodes, seed.
        scale: What outcomes are reported as.
        outcomes: Under which name a row of metrics has them.
        measures: What else is measured at each evaluation.
        has_goals: Whether an episode succeeds or fails.
    """

    measures: tuple[str, ...] = ("return_mean",)

    def __init__(
        self,
        env_id: str,
        n_episodes: int,
        seed: int,
        mean: ArrayLike = 0.0,
        std: ArrayLike = 1.0,
        num_envs: int | None = None,
        max_steps: int | None = None,
        units: ActionUnits = NEUTRAL,
        make: Callable[[str], gymnasium.Env] = make_env,
        reported: Scale | None = None,
        frame_stack: int = 1,
    ) -> None:
        """Makes the environments.

        Args:
            env_id: One of the `d4rl/...` environments or any other registered one with flat observations or images,
                and flat or finite actions.
            n_episodes: Episodes of one evaluation.
            seed: Decides the start states, 0 or more.
            mean: Subtracted from each observation, a number or (state_dim,).
            std: Then divides it, a number or (state_dim,).
            num_envs: How many episodes are stepped together; by default all, at most 10.
            max_steps: An episode is cut after this many steps, if its environment does not end it before.
            units: From the policy's actions to the environment's.
            make: Makes an environment of this name.
            reported: What outcomes are reported as; None: as the environment's name alone tells.
            frame_stack: Of images, how many frames the policy sees, the newest last.

        Raises:
            InputError: The environment is unknown or of another kind, or a number is out of range.
        """
        if n_episodes < 1:
            raise InputError(f"cannot evaluate {n_episodes} episodes; choose at least 1")
        if seed < 0:
            raise InputError(f"cannot seed the evaluation with {seed}; use 0 or more")
        num_envs = min(n_episodes, 10 if num_envs is None else num_envs)
        if num_envs < 1:
            raise InputError(f"cannot step {num_envs} environments; choose at least 1")
        self._envs = [stacked(make(env_id), frame_stack) for _ in range(num_envs)]
        self.state_dim, self.actions = spaces_of(env_id, self._envs[0])
        self.action_dim, self.max_action = self.actions.size, self.actions.bound
        self.fingerprint: dict[str, Any] = {**fingerprint(env_id, self._envs[0]), "episodes": n_episodes, "seed": seed}
        self.scale, self.has_goals = reported or scale(env_id), has_goals(env_id)
        self.outcomes = self.scale.of
        self.mean, self.std = np.asarray(mean), np.asarray(std)
        self.units = units
        self._max_steps = max_steps
        # A longer sequence of seeds starts with the shorter one.
        self._seeds = [int(word) for word in np.random.SeedSequence(seed).generate_state(n_episodes)]
        self._stepping, self._closed = threading.Lock(), False

    def __call__(self, policy: Policy | ContextPolicy) -> Evaluation:
        """Runs every episode once, with one call of `policy` per step.

        Raises:
            RuntimeError: The environments are closed, or another thread closes them meanwhile.
        """
        with self._stepping:
            return self._play(policy)

    def _play(self, policy: Policy | ContextPolicy) -> Evaluation:
        # Gymnasium's vector environments reset one step late. The step after an episode's end returns the new start
        # with a reward of 0, and would be counted. These plain environments are reset here, when they are free.
        n_episodes = len(self._seeds)
        observations = np.zeros((n_episodes, *axes(self.state_dim)), kept_as(self.state_dim))
        returns, lengths = np.zeros(n_episodes), np.zeros(n_episodes, np.int64)
        successes = np.zeros(n_episodes, bool)
        waiting, free = list(range(n_episodes)), list(self._envs)
        running: dict[int, gymnasium.Env] = {}
        while waiting or running:
            if self._closed:
                raise RuntimeError("the environments are closed")
            while waiting and free:
                episode = waiting.pop(0)
                running[episode] = free.pop()
                observations[episode] = self._normalise(running[episode].reset(seed=self._seeds[episode])[0])
            actions = self._actions(policy, observations, returns, lengths)
            for episode, env in list(running.items()):
                observation, reward, terminated, truncated, info = env.step(self.actions.given(actions[episode]))
                observations[episode] = self._normalise(observation)
                returns[episode] += reward
                successes[episode] |= is_goal(float(reward), info)
                lengths[episode] += 1
                if terminated or truncated or lengths[episode] == self._max_steps:
                    free.append(running.pop(episode))
        return (Evaluation if self.outcomes == "returns" else SuccessEvaluation)(returns, lengths, successes)

    def _normalise(self, observation: np.ndarray) -> np.ndarray:
        if not isinstance(self.state_dim, int):
            return observation
        return ((observation - self.mean) / self.std).astype(np.float32)

    def _actions(
        self, policy: Policy | ContextPolicy, observations: np.ndarray, returns: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        # A policy may keep what it is given, and the rows change under it.
        progress = (returns.copy(), lengths.copy()) if isinstance(policy, ContextPolicy) else ()
        actions = np.asarray(policy(observations.copy(), *progress))
        if actions.shape != (expected := (len(observations), *self.actions.shape)):
            raise ValueError(f"the policy returned actions of shape {actions.shape}, not {expected}")
        if self.actions.finite:
            if not np.issubdtype(actions.dtype, np.integer):
                raise ValueError(f"the policy returned actions of type {actions.dtype}, not whole numbers")
            return actions
        return self.units.given(actions)

    def close(self) -> None:
        """Closes the environments; an evaluation that goes on in another thread ends at its next step before that."""
        self._closed = True
        with self._stepping:
            for env in self._envs:
                env.close()
