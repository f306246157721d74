"""Transitions with information from later rows: the data's next action, the trajectory's end, or the return."""

from typing import Any, NamedTuple

import numpy as np

from shared.data.transitions import Batch, ended_by_time, extract_sarsa, extract_transitions
from shared.errors import InputError


class ReturnsBatch(NamedTuple):
    """Like `Batch`, with the data's next actions and returns.

    Attributes:
        observations: (B, S).
        actions: (B, A).
        rewards: (B,).
        next_observations: (B, S).
        terminals: (B,).
        next_actions: (B, A), the data's actions in the next states; meaningless if `terminals` is 1.
        returns: (B,), the discounted sum of the file's rewards from this transition on.
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
    """Extracts transitions like `extract_sarsa`, with their returns.

    A return ends at a terminal, at a time limit or at the end of the file. It is summed in double precision.

    Raises:
        InputError: As for `extract_sarsa`.
    """
    sarsa = extract_sarsa(raw, max_episode_steps)
    rows = np.flatnonzero(~ended_by_time(raw, max_episode_steps)[:-1])
    # Between two rows that are not adjacent there is one that a time limit ended.
    last = np.append(np.diff(rows) > 1, True) | (sarsa.terminals > 0)
    returns, after = [0.0] * len(rows), 0.0
    for row in range(len(rows) - 1, -1, -1):
        after = float(sarsa.rewards[row]) + discount * (0.0 if last[row] else after)
        returns[row] = after
    return ReturnsBatch(*sarsa, np.asarray(returns, np.float32))


def online_rows(steps: Batch) -> ReturnsBatch:
    """Converts environment steps to such transitions; next actions and returns are unknown, and are 0 as in CORL."""
    return ReturnsBatch(*steps, np.zeros_like(steps.actions), np.zeros_like(steps.rewards))


class EndedBatch(NamedTuple):
    """Like `Batch`, with the ends of trajectories.

    Attributes:
        observations: (N, S).
        actions: (N, A).
        rewards: (N,).
        next_observations: (N, S).
        terminals: (N,).
        last: (N,) bool, whether the transition is the last of its trajectory.
    """

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    terminals: Any
    last: Any


def extract_episodes(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> EndedBatch:
    """Extracts transitions like `extract_transitions`, with the ends of episodes that the file states.

    Episodes end at a terminal, at a time limit and at the end of the file. In D4RL's layout, a row that a time limit
    ended is not a transition, so the row before it is its episode's last.

    Raises:
        InputError: As for `extract_transitions`.
    """
    dataset = extract_transitions(raw, max_episode_steps)
    timeouts = ended_by_time(raw, max_episode_steps)
    cut = timeouts if "next_observations" in raw else timeouts[1:][~timeouts[:-1]]
    last = (dataset.terminals > 0) | cut
    last[-1] = True
    return EndedBatch(*dataset, last)


class CalibrationBatch(NamedTuple):
    """Like `Batch`, with the data's returns.

    Attributes:
        observations: (B, S).
        actions: (B, A).
        rewards: (B,).
        next_observations: (B, S).
        terminals: (B,).
        returns: (B,), the discounted sum of the rewards from this transition to its trajectory's end.
    """

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    terminals: Any
    returns: Any


# As in CORL, states further apart than this are not in the same trajectory.
_APART = 1e-6


def extract_ended(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> EndedBatch:
    """Extracts transitions like `extract_transitions`, with the ends of trajectories by Cal-QL's rule.

    A trajectory ends at a terminal, if the next transition begins in another state, after as many steps as an episode
    can have, and at the end of the file.

    Raises:
        InputError: As for `extract_transitions`.
    """
    dataset = extract_transitions(raw, max_episode_steps)
    gaps = np.linalg.norm(dataset.observations[1:] - dataset.next_observations[:-1], axis=1)
    last = (dataset.terminals > 0) | np.append(gaps > _APART, True)
    if max_episode_steps is not None:
        start = 0
        for end in (np.flatnonzero(last) + 1).tolist():
            last[start + max_episode_steps - 1 : end : max_episode_steps] = True
            start = end
    return EndedBatch(*dataset, last)


def with_returns(dataset: EndedBatch, discount: float, failure: float | None = None) -> CalibrationBatch:
    """Adds returns to transitions, summed in double precision.

    Args:
        dataset: The transitions, with the rewards to learn from.
        discount: The discount of the returns.
        failure: A trajectory with this last reward has failed: all its returns are as if it earned this reward forever.
            None if no trajectory fails.

    Raises:
        InputError: The discounted sum of an endless reward is infinite.
    """
    if failure is not None and discount == 1.0:
        raise InputError(
            "a failed trajectory's returns have no end: set discount below 1, or is_sparse_reward to false"
        )
    rewards, last = dataset.rewards.astype(np.float64).tolist(), dataset.last.tolist()
    returns, after, failed = [0.0] * len(rewards), 0.0, False
    for row in range(len(rewards) - 1, -1, -1):
        if last[row]:
            after, failed = 0.0, rewards[row] == failure
        after = rewards[row] + discount * after
        returns[row] = failure / (1.0 - discount) if failed and failure is not None else after
    return CalibrationBatch(*dataset[:5], np.asarray(returns, np.float32))


def unknown_returns(steps: Batch) -> CalibrationBatch:
    """Converts environment steps to such transitions; their returns are unknown, and are 0 as in CORL."""
    return CalibrationBatch(*steps, np.zeros_like(steps.rewards))
