"""Scores a policy on a dataset by estimates of its value, in place of an environment."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shared.data import measures
from shared.data.measures import Episodes
from shared.data.transitions import SarsaBatch
from shared.envs.scores import Scale

Value = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps normalised observations (n, S) and actions (n, A), in the policy's units, to values (n,)."""

# Rows that are valued at once: a network's layers for all of a large dataset would fill the memory
_ROWS = 16_384


class Valuation(NamedTuple):
    """Outcome of one evaluation on a dataset.

    Attributes:
        outcomes: (E,), the value of the policy in the first state of each episode.
        measures: What else was measured, by name.
    """

    outcomes: np.ndarray
    measures: dict[str, float]

    def row(self) -> dict[str, Any]:
        """The entries of a run's metrics."""
        return {**self.measures, "values": self.outcomes.tolist()}


class DatasetEvaluator:
    """Evaluates value functions of one policy on the complete episodes of a dataset, as an `Evaluator` does policies.

    Attributes:
        scale: What outcomes are reported as.
        outcomes: Under which name a row of metrics has them.
        measures: What is measured at each evaluation.
        has_goals: False: an estimate does not tell whether a task's goal is reached.
        fingerprint: What the measures depend on besides the value function.
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
        """Values nothing yet.

        Args:
            dataset: The transitions, with the policy's actions in the next states.
            policy_actions: (N, A), those in the states.
            episodes: The complete ones among them.
            threshold: The return from which on an episode succeeds.
            discount: Of the return that is estimated.
            action_std: (A,), the size of the policy's unit of action in the dataset's.
            fingerprint: What the measures depend on; episodes and threshold are added.

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
        """Measures one value function."""
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
        """Does nothing: a dataset needs no closing."""


def _all(value: Value, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The values of all rows (n,), some rows at a time."""
    number = len(actions)
    values, size = np.empty(number), min(number, _ROWS)
    for first in range(0, number, size):
        # The last rows begin earlier, so that a compiled function meets one shape.
        first = min(first, number - size)
        rows = slice(first, first + size)
        values[rows] = value(observations[rows], actions[rows])
    return values
