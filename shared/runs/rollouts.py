"""Scores a dynamics model: rolls it out beside a dataset's episodes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shared.data.dynamics import Step, find_windows
from shared.data.transitions import Batch
from shared.envs.scores import Scale
from shared.runs.curves import draw_model
from shared.runs.progress import say

Predict = Callable[..., Step]
"""Maps observations (n, S), actions (n, A), normals (E, n, S + 1) and the elites chosen (n,) to a step's columns."""

# A roll-out follows an episode while its states are nearer than this, in deviations of the data's states.
NEAR = 0.5
# What counts for an error that is no number, so that a mean of them stays one
_LARGEST = 1e6


def _bounded(values: np.ndarray) -> np.ndarray:
    return np.nan_to_num(values, nan=_LARGEST).clip(-_LARGEST, _LARGEST)


class Rollouts(NamedTuple):
    """Outcome of one evaluation of a model.

    Attributes:
        outcomes: (n,), for how many steps each roll-out stays near the episode that it follows.
        errors: (H,), how far the states are off after each step, the mean over roll-outs.
        measures: What else was measured, by name.
    """

    outcomes: np.ndarray
    errors: np.ndarray
    measures: dict[str, float]

    def row(self) -> dict[str, Any]:
        """The entries of a run's metrics."""
        return {**self.measures, "followed": self.outcomes.tolist(), "rollout_errors": self.errors.tolist()}


class RolloutEvaluator:
    """Rolls a model out from states of a dataset by its actions, and compares the states with the dataset's.

    The draws are the same in each evaluation. The rows of most windows are learnt from: the held-out rows lie between.

    Attributes:
        scale: What outcomes are reported as.
        outcomes: Under which name a row of metrics has them.
        measures: What is measured at each evaluation.
        has_goals: False: a model reaches no goal.
        fingerprint: What the measures depend on besides the model.
    """

    scale = Scale("steps_followed", "steps followed")
    outcomes = "followed"
    measures: tuple[str, ...] = ("one_step_error", "last_step_error", "reward_error", "penalty", "ended")
    has_goals = False

    def __init__(self, config: Any, dataset: Batch, fingerprint: dict[str, Any]) -> None:
        """Rolls nothing out yet.

        Args:
            config: Has `rollout_length`, `n_rollouts`, `n_ensemble`, `n_elites` and `seed`.
            dataset: All transitions; windows are spread over them evenly.
            fingerprint: What the measures depend on; the windows are added.
        """
        windows, length = find_windows(dataset, config.rollout_length)
        number = min(config.n_rollouts, len(windows))
        if length < config.rollout_length:
            say(f"roll-outs of an evaluation have {length} steps: no episode has {config.rollout_length} on end")
        starts = windows[np.linspace(0, len(windows) - 1, number).astype(int)]
        self._rows = starts[:, None] + np.arange(length)
        self._dataset, self._config = dataset, config
        std = dataset.observations.std(axis=0)
        self._std = np.where(std < 1e-12, np.ones_like(std), std)
        self.fingerprint = fingerprint | {"rollouts": number, "rollout_length": length}

    def __call__(self, predict: Predict) -> Rollouts:
        """Rolls one model out."""
        data, config = self._dataset, self._config
        rng = np.random.default_rng(config.seed)
        number, length = self._rows.shape
        states = data.observations[self._rows[:, 0]]
        shape = config.n_ensemble, number, states.shape[1] + 1
        errors, rewards, penalties = (np.empty((number, length)) for _ in range(3))
        ended = np.zeros(number, dtype=bool)
        for step in range(length):
            rows = self._rows[:, step]
            draws = rng.normal(size=shape), rng.integers(min(config.n_elites, config.n_ensemble), size=number)
            predicted = predict(states, data.actions[rows], *draws)
            states, _, terminals, raw_rewards, penalty = (np.asarray(column) for column in predicted)
            apart = (states.astype(np.float64) - data.next_observations[rows]) / self._std
            errors[:, step] = np.sqrt(np.square(apart).mean(axis=1))
            rewards[:, step] = raw_rewards - data.rewards[rows]
            penalties[:, step] = penalty
            ended |= terminals
        errors, rewards, penalties = (_bounded(values) for values in (errors, rewards, penalties))
        mean_errors = errors.mean(axis=0)
        followed = np.cumprod(errors < NEAR, axis=1).sum(axis=1).astype(np.float64)
        measures = {
            "one_step_error": float(mean_errors[0]),
            "last_step_error": float(mean_errors[-1]),
            "reward_error": float(np.sqrt(np.square(rewards).mean())),
            "penalty": float(penalties.mean()),
            "ended": float(ended.mean()),
        }
        return Rollouts(followed, mean_errors, measures)

    def close(self) -> None:
        """Does nothing: a dataset needs no closing."""

    def draw(self, rows: Sequence[Mapping[str, Any]], title: str) -> bytes | None:
        """A picture of the run from its rows of metrics; None before the first evaluation.

        Raises:
            Exception: Whatever Matplotlib raises.
        """
        evaluated = [row for row in rows if "rollout_errors" in row]
        logged = [row for row in rows if "holdout_loss" in row]
        return draw_model(logged, evaluated, NEAR, title) if evaluated and logged else None
