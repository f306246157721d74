"""Policies learned in runs, and their evaluation."""

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from corl_twins.data import HasDataset, scoring_environment
from corl_twins.place import enter
from corl_twins.training import Run

if TYPE_CHECKING:
    from shared.envs.evaluation import Evaluator
    from shared.frameworks.saved_run import SavedRun


class Evaluation(NamedTuple):
    """The result of evaluating a policy.

    Attributes:
        score: The mean over the episodes, on the scale that `metric` names.
        metric: `d4rl_normalized_score`, `normalized_return`, `success_percent` or `return_mean`.
        returns: (episodes,), the sum of each episode's rewards.
        lengths: (episodes,), the steps of each episode.
    """

    score: float
    metric: str
    returns: np.ndarray
    lengths: np.ndarray


class Policy:
    """A run's policy: it maps raw observations to actions that the environment accepts.

    Attributes:
        framework: `torch` or `jax`, which computes the actions.
        algorithm: The algorithm that learned it, such as `iql`.
        env: The environment that scored the run.
        path: The checkpoint that it comes from.
    """

    framework: str
    algorithm: str
    env: str
    path: Path

    def __init__(self, saved: "SavedRun", framework: str, seed: int | None = None) -> None:
        """Use `load_policy`, which finds the checkpoint."""
        self._saved, self._seed = saved, seed
        self.framework, self.algorithm, self.path = framework, saved.algorithm, saved.path
        self.env = saved.env_id
        self._statistics, self._action_statistics = saved.statistics(), saved.action_statistics()
        self._begin()

    def __repr__(self) -> str:
        """Describes the policy in one line."""
        return f"Policy({self.algorithm}, {self.framework}, {self.env}, {self.path})"

    def _begin(self) -> None:
        """Forgets every episode."""
        self._act = self._saved.policy(self._seed, self.framework)

    def __call__(
        self,
        observations: ArrayLike | Mapping[str, Any],
        returns: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
        goals: ArrayLike | None = None,
    ) -> np.ndarray:
        """The actions for one observation, or for the observations of several episodes that are stepped together.

        Args:
            observations: (S,), or (E, S) for E episodes; for images (C, H, W) or (E, C, H, W). Or the dictionary of an
                environment that sets goals, with `observation` and `desired_goal`, instead of `goals`.
            returns: (E,), the sum of each episode's rewards so far. Only a Decision Transformer needs this.
            lengths: (E,), the steps of each episode so far. A Decision Transformer needs this. A policy that draws
                random numbers restarts them for an episode whose length is 0; without lengths it continues to draw.
            goals: Of the shape of `observations`, the states to reach; only for a goal-conditioned policy.

        Returns:
            (A,) or (E, A), float32, in the environment's own units; finite actions are () or (E,), counted from 0.

        Raises:
            InputError: The observations have another shape, a Decision Transformer gets no returns and lengths, or
                goals are missing, have another shape or are not needed.
        """
        from shared.envs.evaluation import ContextPolicy

        states: Any = observations
        if isinstance(states, Mapping):
            states, goals = states["observation"], states["desired_goal"]
        rows, alone = self._rows(states)
        if isinstance(self._act, ContextPolicy):
            actions = self._act(rows, *self._progress(len(rows), returns, lengths))
        else:
            actions = self._act(rows, *self._goals(states, goals))
        mean, std = self._action_statistics
        actions = np.asarray(actions)
        if not np.issubdtype(actions.dtype, np.integer):
            actions = actions * std + mean
        return actions[0] if alone else actions

    def _rows(self, observations: ArrayLike) -> tuple[np.ndarray, bool]:
        """Observations (E, ...) in the network's form, and whether there was only one."""
        from shared.envs.spaces import axes
        from shared.errors import InputError

        rows, shape = np.asarray(observations), axes(self._saved.sizes[0])
        alone = rows.ndim == len(shape)
        rows = rows[None] if alone else rows
        if rows.shape[1:] != shape:
            raise InputError(f"observations have shape {np.shape(observations)}: pass {shape}, or several rows of it")
        if len(shape) > 1:
            return rows, alone
        mean, std = self._statistics
        return ((rows - mean) / std).astype(np.float32), alone

    def _goals(self, observations: ArrayLike, goals: ArrayLike | None) -> list[np.ndarray]:
        """The goals in the network's form, if the policy is given any."""
        from shared.errors import InputError

        if self._saved.takes_goals != (goals is not None):
            advice = "pass goals of the shape of the observations" if goals is None else "leave out goals"
            raise InputError(
                f"{self.algorithm} learns a policy {'with' if goals is None else 'without'} goals: {advice}"
            )
        if goals is not None and np.shape(goals) != np.shape(observations):
            raise InputError(f"goals have shape {np.shape(goals)}: pass {np.shape(observations)}, as for observations")
        return [] if goals is None else [self._rows(goals)[0]]

    def _progress(
        self, rows: int, returns: ArrayLike | None, lengths: ArrayLike | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The progress of each episode, (E,) and (E,)."""
        from shared.errors import InputError

        if self._saved.is_prompted and (returns is None or lengths is None):
            raise InputError("a Decision Transformer acts on its history too: pass the returns and lengths so far")
        lengths = np.ones(rows, int) if lengths is None else np.reshape(lengths, rows).astype(int)
        if not lengths.any():
            self._begin()
        return np.zeros(rows) if returns is None else np.reshape(returns, rows).astype(float), lengths

    def _evaluator(self, env_id: str | None, episodes: int, seed: int | None) -> "Evaluator":
        return self._saved.evaluator(episodes, seed, env_id)

    def _playing(self, seed: int | None) -> Callable[..., np.ndarray]:
        """The policy for an evaluator, which normalises observations itself."""
        return self._saved.policy(seed, self.framework)


def load_policy(run: Run | str | PathLike[str], framework: str | None = None, seed: int | None = None) -> Policy:
    """Loads the policy that a run has learned.

    Args:
        run: A run, its folder, or one of its checkpoints, whichever framework trained it.
        framework: The framework that computes the actions, `torch` or `jax`; None means the one that trained the run.
        seed: The seed for policies that sample their actions; None means the run's own evaluation seed.

    Raises:
        InputError: There is no checkpoint, it cannot be used, or the run has learned no policy.
    """
    enter()
    from shared.errors import InputError
    from shared.frameworks.saved_run import SavedRun, find
    from shared.frameworks.twins import FRAMEWORKS

    if framework is not None and framework not in FRAMEWORKS:
        raise InputError(f"unknown framework {framework!r}: choose {' or '.join(map(repr, FRAMEWORKS))}")
    saved = SavedRun.open(find(run.folder if isinstance(run, Run) else Path(run)))
    saved.check_acts()
    return Policy(saved, framework or saved.framework, seed)


def evaluate(
    policy: Policy | Callable[..., ArrayLike],
    env: str | HasDataset | None = None,
    episodes: int = 10,
    seed: int | None = None,
) -> Evaluation:
    """Runs a policy for some episodes, and scores it as runs are scored.

    Episode k begins in a state that depends on `seed` and k only, so policies are compared from the same states.

    Args:
        policy: The result of `load_policy`, or any function from observations (episodes, S) to actions (episodes, A).
            Observations are float32, as the environment gives them. If it sets goals, the function also gets these,
            (episodes, S). Finite actions are whole numbers (episodes,), counted from 0. A row of an episode that has
            ended has no effect.
        env: A Gymnasium environment's name, or a dataset as in `train`, whose environment is then used. None means the
            environment that scored the run; a function of your own needs a name.
        episodes: The number of episodes.
        seed: Decides the start states, 0 or more. None means the seed of the run's own evaluations, or 0.

    Raises:
        InputError: The environment or a number cannot be used, or the policy does not fit.
    """
    enter()
    from shared.envs.evaluation import Evaluator
    from shared.errors import InputError

    if isinstance(policy, Policy):
        env_id = None if env is None else scoring_environment(env)[0]
        evaluator, act = policy._evaluator(env_id, episodes, seed), policy._playing(seed)
    elif env is None:
        raise InputError("a function does not say where it acts: pass the name of an environment as env")
    else:
        env_id, source = scoring_environment(env)
        stated = None if source is None or source.attributes.get("env_id") != env_id else source.attributes
        evaluator = Evaluator(env_id, episodes, seed or 0, stated=stated)
        act = _checked(policy, (episodes, *evaluator.actions.shape), evaluator.actions.finite)
    try:
        played = evaluator(act)
    finally:
        evaluator.close()
    score = float(evaluator.scale(played.outcomes).mean())
    return Evaluation(score, evaluator.scale.metric, played.returns, played.lengths)


def _checked(policy: Callable[..., ArrayLike], shape: tuple[int, ...], finite: bool) -> Callable[..., np.ndarray]:
    """Wraps a policy to check its actions."""
    from shared.errors import InputError

    def act(*inputs: np.ndarray) -> np.ndarray:
        actions: Any = np.asarray(policy(*inputs))
        if actions.shape != shape:
            raise InputError(f"the policy returned actions of shape {actions.shape}: return {shape}, a row an episode")
        if finite and not np.issubdtype(actions.dtype, np.integer):
            raise InputError(f"the policy returned actions of type {actions.dtype}: return whole numbers")
        return actions

    return act
