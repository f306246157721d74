"""Runs a policy for a number of episodes, which are stepped together."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from shared.envs.boxes import NEUTRAL, ActionUnits
from shared.envs.goals import has_goals, is_goal, state_of, tasks_of
from shared.envs.images import stacked
from shared.envs.registry import fingerprint, make_env
from shared.envs.scores import scale
from shared.envs.spaces import axes, kept_as, sets_goals, spaces_of
from shared.errors import InputError

Policy = Callable[[np.ndarray], np.ndarray]
"""Maps normalised observations (n_episodes, state_dim) float32, or images (n_episodes, C, H, W), to actions
(n_episodes, action_dim), or finite ones (n_episodes,). If the environment sets goals, it also gets these, normalised
like the observations and of their shape."""


class ContextPolicy(ABC):
    """A policy that remembers each episode, and gets its return and length so far."""

    @abstractmethod
    def __call__(self, observations: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The actions of one step.

        Args:
            observations: (n_episodes, state_dim) float32, normalised.
            returns: (n_episodes,), the sum of each episode's rewards so far.
            lengths: (n_episodes,), each episode's steps so far; 0 at its beginning.

        Returns:
            Actions (n_episodes, action_dim), or finite ones (n_episodes,).
        """


class SampledPolicy(ContextPolicy):
    """A policy that draws random numbers at each step, from a separate generator for each episode.

    Therefore the draws of episode k only depend on the seed and k, like its start state, and not on the generators of
    training.
    """

    def __init__(
        self,
        act: Callable[[np.ndarray, np.ndarray], np.ndarray],
        draw: Callable[[np.random.Generator], np.ndarray],
        seed: int,
    ) -> None:
        """Draws nothing yet.

        Args:
            act: Maps observations (n_episodes, state_dim) and noise (n_episodes, ...) to actions.
            draw: Draws the noise (...) for one step of one episode.
            seed: 0 or more.
        """
        self._act, self._draw, self._seed = act, draw, seed
        self._generators: dict[int, np.random.Generator] = {}

    def __call__(self, observations: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The actions of one step, as for any `ContextPolicy`."""
        self._begin(lengths)
        noise = [self._draw(self._generators[episode]) for episode in range(len(observations))]
        return self._act(observations, np.stack(noise).astype(np.float32))

    def _begin(self, lengths: np.ndarray) -> None:
        """Gives each episode that begins its own generator."""
        for episode in map(int, np.flatnonzero(lengths == 0)):
            self._generators[episode] = np.random.default_rng([self._seed, episode])


class ChunkedPolicy(SampledPolicy):
    """A policy that chooses several actions at once, and plays them one after the other without looking.

    It chooses at the beginning of an episode, and whenever all of the chosen actions are played. Only then does it draw
    for that episode.
    """

    def __init__(
        self,
        act: Callable[[np.ndarray, np.ndarray], np.ndarray],
        draw: Callable[[np.random.Generator], np.ndarray],
        seed: int,
        horizon_length: int,
    ) -> None:
        """Draws nothing yet.

        Args:
            act: Maps observations (n_episodes, state_dim) and noise (n_episodes, ...) to chunks of actions (n_episodes,
                horizon_length, action_dim).
            draw: Draws the noise (...) for one chunk of one episode.
            seed: 0 or more.
            horizon_length: Number of actions in a chunk.
        """
        super().__init__(act, draw, seed)
        self._horizon_length = horizon_length
        self._chunks = np.empty(0)

    def __call__(self, observations: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The actions of one step, as for any `ContextPolicy`."""
        self._begin(lengths)
        place = lengths % self._horizon_length
        if len(due := np.flatnonzero(place == 0)):
            drawn = np.stack([self._draw(self._generators[episode]) for episode in map(int, due)]).astype(np.float32)
            # A compiled policy always gets all episodes.
            noise = np.zeros((len(observations), *drawn.shape[1:]), np.float32)
            noise[due] = drawn
            chunks = np.array(self._act(observations, noise))
            if len(due) < len(chunks):
                kept = np.flatnonzero(place)
                chunks[kept] = self._chunks[kept]
            self._chunks = chunks
        return self._chunks[np.arange(len(observations)), place]


def epsilon_greedy(policy: Policy, epsilon: float, action_dim: int, seed: int) -> SampledPolicy:
    """A policy for finite actions that acts at random in a share `epsilon` of its steps.

    Each step draws a uniform number and an action, whether or not they are used. Therefore an episode draws the same
    numbers for every epsilon.

    Args:
        policy: Maps observations (n_episodes, state_dim) to actions (n_episodes,).
        epsilon: From 0 to 1.
        action_dim: The number of actions.
        seed: As for `SampledPolicy`.
    """

    def act(observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return np.where(noise[:, 0] < epsilon, noise[:, 1].astype(np.int64), policy(observations))

    def draw(rng: np.random.Generator) -> np.ndarray:
        return np.array([rng.random(), rng.integers(action_dim)])

    return SampledPolicy(act, draw, seed)


class Evaluation(NamedTuple):
    """The outcome of one evaluation.

    `returns` (n_episodes,) are undiscounted and not normalised, float64. `lengths` (n_episodes,) are steps. `successes`
    (n_episodes,) say whether a step of the episode reached its goal, if it has one. Episodes took the `tasks` in turn.
    """

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray
    tasks: int = 1

    @property
    def outcomes(self) -> np.ndarray:
        """The returns, which determine the policy's score."""
        return self.returns

    def row(self) -> dict[str, Any]:
        """The entries in a row of the run's metrics."""
        mean = float(self.returns.mean())
        return {"return_mean": mean, "returns": self.returns.tolist(), "lengths": self.lengths.tolist()}


class SuccessEvaluation(Evaluation):
    """The outcome of one evaluation in an environment that scores episodes by success alone."""

    __slots__ = ()

    @property
    def outcomes(self) -> np.ndarray:
        """The outcomes that determine the policy's score: 1 for each successful episode, 0 for any other, float64."""
        return self.successes.astype(np.float64)

    def row(self) -> dict[str, Any]:
        """The entries in a row of the run's metrics; if there are several tasks, each one's share of successes too."""
        found = {**super().row(), "successes": self.outcomes.tolist()}
        for task in range(min(self.tasks, len(self.returns)) if self.tasks > 1 else 0):
            share = 100.0 * self.outcomes[task :: self.tasks].mean()
            found[f"task_{task + 1}_success_percent"] = float(share)
        return found


class Evaluator:
    """Evaluates policies in one environment, always from the same start states.

    Episode k starts from a state that only depends on `seed` and k. It is row k of the policy's inputs, whatever
    `num_envs` is. With another number of rows, a matrix product would round differently, and a compiled policy would be
    traced again.

    Attributes:
        state_dim: Size of an observation, or shape (C, H, W) of an image.
        actions: The environment's actions.
        action_dim: Size of an action; for finite actions, their number.
        max_action: Upper bound of the first action component; 1 for finite actions.
        mean: Subtracted from each observation, () or (state_dim,).
        std: Divides each observation after that, () or (state_dim,).
        units: Converts the policy's actions to the environment's.
        fingerprint: Everything that a score depends on, apart from the policy: environment, MuJoCo version, mass,
            episodes, seed.
        scale: The scale on which outcomes are reported.
        outcomes: The key of the outcomes in a row of metrics.
        measures: The names of further measurements.
        has_goals: Whether episodes succeed or fail.
        sets_goals: Whether the policy is given a goal in each episode.
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
        stated: Mapping[str, Any] | None = None,
        frame_stack: int = 1,
    ) -> None:
        """Makes the environments.

        Args:
            env_id: One of the `d4rl/...` environments or any other registered one with flat observations or images, and
                flat or finite actions.
            n_episodes: Episodes in an evaluation.
            seed: The seed of the start states, 0 or more.
            mean: Subtracted from each observation, a number or (state_dim,).
            std: Divides each observation after that, a number or (state_dim,).
            num_envs: Number of episodes stepped together; by default all, but at most 10.
            max_steps: The step after which an episode is cut, unless its environment ends it before.
            units: Converts the policy's actions to the environment's.
            make: Makes an environment by name.
            stated: The attributes of a file from this environment, which may state the returns that count as 0 and 100.
            frame_stack: Number of frames in an observation of images, the newest last.

        Raises:
            InputError: The environment is unknown, its spaces cannot be used, or a number is out of range.
        """
        if n_episodes < 1:
            raise InputError(f"cannot evaluate {n_episodes} episodes; choose at least 1")
        if seed < 0:
            raise InputError(f"cannot seed the evaluation with {seed}; use 0 or more")
        num_envs = min(n_episodes, 10 if num_envs is None else num_envs)
        if num_envs < 1:
            raise InputError(f"cannot step {num_envs} environments; choose at least 1")
        self._envs = [stacked(make(env_id), frame_stack) for _ in range(num_envs)]
        self.state_dim, self.actions = spaces_of(env_id, self._envs[0], with_goals=True)
        self.sets_goals = sets_goals(self._envs[0])
        self._tasks = tasks_of(self._envs[0])
        self.action_dim, self.max_action = self.actions.size, self.actions.bound
        self.fingerprint: dict[str, Any] = {**fingerprint(env_id, self._envs[0]), "episodes": n_episodes, "seed": seed}
        if self.sets_goals:
            self.fingerprint["sets_goals"] = True
        self.scale, self.has_goals = scale(env_id, {**(stated or {}), **self.fingerprint}), has_goals(env_id)
        self.outcomes = self.scale.of
        self.mean, self.std = np.asarray(mean), np.asarray(std)
        self.units = units
        self._max_steps = max_steps
        # A longer sequence of seeds begins with the shorter one, so more episodes do not change the first ones.
        self._seeds = [int(word) for word in np.random.SeedSequence(seed).generate_state(n_episodes)]
        self._stepping, self._closed = threading.Lock(), False

    def __call__(self, policy: Policy | ContextPolicy) -> Evaluation:
        """Runs every episode once, with one call of `policy` per step.

        Raises:
            RuntimeError: The environments are closed, or another thread closes them during the evaluation.
        """
        with self._stepping:
            return self._play(policy)

    def _play(self, policy: Policy | ContextPolicy) -> Evaluation:
        # Gymnasium's vector environments reset one step late: the step after an episode's end returns the new start
        # with a reward of 0, and would be counted. These plain environments are reset here, when they are free.
        n_episodes = len(self._seeds)
        observations = np.zeros((n_episodes, *axes(self.state_dim)), kept_as(self.state_dim))
        goals = np.zeros_like(observations) if self.sets_goals else None
        returns, lengths = np.zeros(n_episodes), np.zeros(n_episodes, np.int64)
        successes = np.zeros(n_episodes, bool)
        waiting, free = list(range(n_episodes)), list(self._envs)
        running: dict[int, gymnasium.Env] = {}
        while waiting or running:
            if self._closed:
                raise RuntimeError("the environments are closed")
            while waiting and free:
                episode = waiting.pop(0)
                env = running[episode] = free.pop()
                task = self._tasks[episode % len(self._tasks)]
                observation, _ = env.reset(seed=self._seeds[episode], options=task)
                observations[episode] = self._normalise(state_of(observation))
                if goals is not None:
                    goals[episode] = self._normalise(observation["desired_goal"])
            actions = self._actions(policy, observations, goals, returns, lengths)
            for episode, env in list(running.items()):
                observation, reward, terminated, truncated, info = env.step(self.actions.given(actions[episode]))
                observations[episode] = self._normalise(state_of(observation))
                returns[episode] += reward
                successes[episode] |= is_goal(float(reward), info)
                lengths[episode] += 1
                if terminated or truncated or lengths[episode] == self._max_steps:
                    free.append(running.pop(episode))
        kind = Evaluation if self.outcomes == "returns" else SuccessEvaluation
        return kind(returns, lengths, successes, len(self._tasks))

    def _normalise(self, observation: np.ndarray) -> np.ndarray:
        if not isinstance(self.state_dim, int):
            return observation
        return ((observation - self.mean) / self.std).astype(np.float32)

    def _actions(
        self,
        policy: Policy | ContextPolicy,
        observations: np.ndarray,
        goals: np.ndarray | None,
        returns: np.ndarray,
        lengths: np.ndarray,
    ) -> np.ndarray:
        inputs = [observations] if goals is None else [observations, goals]
        inputs += [returns, lengths] if isinstance(policy, ContextPolicy) else []
        # Copies, because a policy may keep its inputs, and these arrays change.
        actions = np.asarray(policy(*(array.copy() for array in inputs)))
        if actions.shape != (expected := (len(observations), *self.actions.shape)):
            raise ValueError(f"the policy returned actions of shape {actions.shape}, not {expected}")
        if self.actions.finite:
            if not np.issubdtype(actions.dtype, np.integer):
                raise ValueError(f"the policy returned actions of type {actions.dtype}, not whole numbers")
            return actions
        return self.units.given(actions)

    def close(self) -> None:
        """Closes the environments; an evaluation in another thread first ends at its next step."""
        self._closed = True
        with self._stepping:
            for env in self._envs:
                env.close()
