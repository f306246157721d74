"""Scores a dynamics model by rolling it out along a dataset's episodes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shared.data.dynamics import Step, find_windows
from shared.data.transitions import Batch
from shared.envs.scores import Scale
from shared.runs.curves import draw_model
from shared.runs.progress import say

Predict = Callable[..., Step]
"""Maps observations (n, S), actions (n, A), normal noise (E, n, S + 1) and chosen elites (n,) to a step's columns."""

# A roll-out follows an episode while its states' error, in standard deviations of the data's states, is below this.
NEAR = 0.5
# Replaces errors that are not finite or are larger, so that means stay finite
_LARGEST = 1e6


def _bounded(values: np.ndarray) -> np.ndarray:
    return np.nan_to_num(values, nan=_LARGEST).clip(-_LARGEST, _LARGEST)


class Rollouts(NamedTuple):
    """The outcome of one evaluation of a model.

    Attributes:
        outcomes: (n,), the number of steps that each roll-out stays close to its episode.
        errors: (H,), the error of the states after each step, averaged over roll-outs.
        measures: Further measurements, by name.
    """

    outcomes: np.ndarray
    errors: np.ndarray
    measures: dict[str, float]

    def row(self) -> dict[str, Any]:
        """The entries in a row of the run's metrics."""
        return {**self.measures, "followed": self.outcomes.tolist(), "rollout_errors": self.errors.tolist()}


class RolloutEvaluator:
    """Rolls a model out from recorded states with recorded actions, and compares its states with the recorded ones.

    Every evaluation draws the same random numbers. Windows mostly consist of training rows, among which the held-out
    rows are scattered.

    Attributes:
        scale: The scale on which outcomes are reported.
        outcomes: The key of the outcomes in a row of metrics.
        measures: The names of the further measurements.
        has_goals: Always False, because a model has no goal to reach.
        fingerprint: Everything that an evaluation depends on, apart from the model.
    """

    scale = Scale("steps_followed", "steps followed")
    outcomes = "followed"
    measures: tuple[str, ...] = ("one_step_error", "last_step_error", "reward_error", "penalty", "ended")
    has_goals = False

    def __init__(self, config: Any, dataset: Batch, fingerprint: dict[str, Any]) -> None:
        """Chooses the windows of the dataset to roll out.

        Args:
            config: Has `rollout_length`, `n_rollouts`, `n_ensemble`, `n_elites` and `seed`.
            dataset: All transitions; windows are evenly spaced over them.
            fingerprint: Everything that an evaluation depends on; the constructor adds the windows.
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
        """Rolls out a model."""
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
        """Does nothing, because a dataset need not be closed."""

    def draw(self, rows: Sequence[Mapping[str, Any]], title: str) -> bytes | None:
        """Draws a picture of the run from its rows of metrics; returns None before the first evaluation.

        Raises:
            Exception: Whatever Matplotlib raises.
        """
        evaluated = [row for row in rows if "rollout_errors" in row]
        logged = [row for row in rows if "holdout_loss" in row]
        return draw_model(logged, evaluated, NEAR, title) if evaluated and logged else None
