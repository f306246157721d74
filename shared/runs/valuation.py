"""Scores a policy on a dataset by estimates of its value, instead of in an environment."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shared.data import measures
from shared.data.measures import Episodes
from shared.data.transitions import SarsaBatch
from shared.envs.scores import Scale

Value = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps normalised observations (n, S) and actions (n, A), in the policy's units, to values (n,)."""

# Rows per call: the activations for all rows of a large dataset would fill the memory
_ROWS = 16_384


class Valuation(NamedTuple):
    """The outcome of one evaluation on a dataset.

    Attributes:
        outcomes: (E,), the value of the policy in the first state of each episode.
        measures: Further measurements, by name.
    """

    outcomes: np.ndarray
    measures: dict[str, float]

    def row(self) -> dict[str, Any]:
        """The entries in a row of the run's metrics."""
        return {**self.measures, "values": self.outcomes.tolist()}


class DatasetEvaluator:
    """Evaluates value functions of one policy on the complete episodes of a dataset.

    Attributes:
        scale: The scale on which outcomes are reported.
        outcomes: The key of the outcomes in a row of metrics.
        measures: The names of further measurements.
        has_goals: Always False, because an estimate cannot say if a goal is reached.
        fingerprint: Everything that an evaluation depends on, apart from the value function.
    """

    scale = Scale("initial_state_value", "value in first states")
    outcomes = "values"
    measures: tuple[str, ...] = ("soft_opc", "td_error", "discounted_advantage", "average_value", "action_difference")
    has_goals = False

    def __init__(
        self,
        dataset: SarsaBatch,
        policy_actions: np.ndarray,
        episodes: Episodes,
        threshold: float,
        discount: float,
        action_std: np.ndarray,
        fingerprint: dict[str, Any],
    ) -> None:
        """Stores the complete episodes, and measures what does not depend on the value function.

        Args:
            dataset: The transitions, with the policy's actions in the next states.
            policy_actions: (N, A), the policy's actions in the states.
            episodes: The complete episodes in the dataset.
            threshold: The least return of a successful episode.
            discount: The discount of the estimated return.
            action_std: (A,), the size of the policy's unit of action in the dataset's units.
            fingerprint: Everything that an evaluation depends on; the constructor adds the episodes and the threshold.

        Raises:
            InputError: No episode succeeds.
        """
        size = episodes.size
        self._dataset, self._actions = SarsaBatch(*(column[:size] for column in dataset)), policy_actions[:size]
        self._episodes, self._discount = episodes, discount
        self._succeeded = measures.successes(episodes, threshold)
        self._difference = measures.action_difference(self._dataset.actions * action_std, self._actions * action_std)
        self.fingerprint = fingerprint | {"episodes": len(episodes.starts), "return_threshold": threshold}

    def __call__(self, value: Value) -> Valuation:
        """Evaluates one value function."""
        data, episodes, discount = self._dataset, self._episodes, self._discount
        q = _all(value, data.observations, data.actions)
        values = _all(value, data.observations, self._actions)
        next_values = _all(value, data.next_observations, data.next_actions)
        found = {
            "soft_opc": measures.soft_opc(q, self._succeeded),
            "td_error": measures.td_error(q, data.rewards, next_values, data.terminals, discount),
            "discounted_advantage": measures.discounted_advantage(q, values, episodes, discount),
            "average_value": float(values.mean()),
            "action_difference": self._difference,
        }
        return Valuation(measures.initial_state_value(values, episodes), found)

    def close(self) -> None:
        """Does nothing, because a dataset need not be closed."""


def _all(value: Value, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The values of all rows (n,), computed in batches."""
    number = len(actions)
    values, size = np.empty(number), min(number, _ROWS)
    for first in range(0, number, size):
        # The last batch overlaps the one before it, so that a compiled function sees one shape.
        first = min(first, number - size)
        rows = slice(first, first + size)
        values[rows] = value(observations[rows], actions[rows])
    return values
