"""Transitions that know what came of them: the data's next action, where it ends, the return from there on."""

from typing import Any, NamedTuple

import numpy as np

from shared.data.transitions import Batch, ended_by_time, extract_sarsa, extract_transitions
from shared.errors import InputError


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


class EndedBatch(NamedTuple):
    """Transitions with where their trajectories end, otherwise as `Batch`.

    Attributes:
        observations: (N, S).
        actions: (N, A).
        rewards: (N,).
        next_observations: (N, S).
        terminals: (N,).
        last: (N,) bool, whether a trajectory ends with the transition.
    """

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    terminals: Any
    last: Any


def extract_episodes(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> EndedBatch:
    """Transitions as `extract_transitions` makes them, and where the file says that episodes end.

    They end with a terminal, with a time limit and with the file. A row that a time limit ended is no transition in
    D4RL's layout: there the row before it is its episode's last.

    Raises:
        InputError: As `extract_transitions`.
    """
    dataset = extract_transitions(raw, max_episode_steps)
    timeouts = ended_by_time(raw, max_episode_steps)
    cut = timeouts if "next_observations" in raw else timeouts[1:][~timeouts[:-1]]
    last = (dataset.terminals > 0) | cut
    last[-1] = True
    return EndedBatch(*dataset, last)


class CalibrationBatch(NamedTuple):
    """Transitions with what the data earned from there on, otherwise as `Batch`.

    Attributes:
        observations: (B, S).
        actions: (B, A).
        rewards: (B,).
        next_observations: (B, S).
        terminals: (B,).
        returns: (B,), the discounted sum of the rewards from the transition to its trajectory's end.
    """

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    terminals: Any
    returns: Any


# Two states further apart than this are not of one trajectory, as in CORL.
_APART = 1e-6


def extract_ended(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> EndedBatch:
    """Transitions as `extract_transitions` makes them, and where trajectories end by Cal-QL's rule.

    They end with a terminal, where the next transition begins elsewhere, after as many as an episode has steps, and
    with the file.

    Raises:
        InputError: As `extract_transitions`.
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
    """The transitions with their returns, which are added up in double precision.

    Args:
        dataset: With the rewards that are learnt from.
        discount: Of the returns.
        failure: A trajectory whose last reward is this has failed: it is taken to earn it for ever, from its first
            transition on. None: none has.

    Raises:
        InputError: What is earned for ever has no end.
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
    """Steps of an environment as such transitions: returns, which only the future could tell, are 0, as in CORL."""
    return CalibrationBatch(*steps, np.zeros_like(steps.rewards))
