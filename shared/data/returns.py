"""Transitions that know what came of them: the data's next action, and the return from there on."""

from typing import Any, NamedTuple

import numpy as np

from shared.data.transitions import Batch, ended_by_time, extract_sarsa


class ReturnsBatch(NamedTuple):
    """Transitions with what the data did next and what they earned, otherwise as `Batch`.

    Attributes:
        observations: (B, S).
        actions: (B, A).
        rewards: (B,).
        next_observations: (B, S).
        terminals: (B,).
        next_actions: (B, A), the data's actions in the next states; of no meaning where `terminals` is 1.
        returns: (B,), the discounted sum of the rewards from the transition on, as the file has them.
    """

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    terminals: Any
    next_actions: Any
    returns: Any


def extract_returns(
    raw: dict[str, np.ndarray], max_episode_steps: int | None = None, discount: float = 0.99
) -> ReturnsBatch:
    """Transitions as `extract_sarsa` makes them, with their returns.

    A return ends with a terminal, a time limit or the file. It is added up in double precision.

    Raises:
        InputError: As `extract_sarsa`.
    """
    sarsa = extract_sarsa(raw, max_episode_steps)
    rows = np.flatnonzero(~ended_by_time(raw, max_episode_steps)[:-1])
    # Between two rows that are not beside each other lies one that a time limit ended.
    last = np.append(np.diff(rows) > 1, True) | (sarsa.terminals > 0)
    returns, after = [0.0] * len(rows), 0.0
    for row in range(len(rows) - 1, -1, -1):
        after = float(sarsa.rewards[row]) + discount * (0.0 if last[row] else after)
        returns[row] = after
    return ReturnsBatch(*sarsa, np.asarray(returns, np.float32))


def online_rows(steps: Batch) -> ReturnsBatch:
    """Steps of an environment as such transitions: what only their future could tell is 0, as in CORL."""
    return ReturnsBatch(*steps, np.zeros_like(steps.actions), np.zeros_like(steps.rewards))
