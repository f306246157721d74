"""Chunks of actions: a dataset's rows in their order, and batches of several successive rows of it."""

from typing import Any, NamedTuple

import numpy as np

from shared.data.episodes import of_each_transition
from shared.data.returns import EndedBatch
from shared.data.transitions import extract_transitions
from shared.errors import InputError


class Chunks(NamedTuple):
    """A batch of B chunks: h successive rows each, some of which may belong to the next episode.

    Attributes:
        observations: (B, S), of the first row.
        actions: (B, h, A).
        rewards: (B,), the discounted sum of all rows.
        next_observations: (B, S), after the last row.
        terminals: (B,), 1 if one of the rows is terminal, otherwise 0.
        valid: (B, h), 1 for the rows of the first row's episode, otherwise 0.
    """

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    terminals: Any
    valid: Any


def extract_in_order(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> EndedBatch:
    """Extracts transitions like `extract_transitions`, in the order of the rows, with the ends of episodes.

    If data continue after terminals, as OGBench's do, a terminal is no end.

    Raises:
        InputError: As for `extract_transitions`.
    """
    episodes = of_each_transition(raw, max_episode_steps)
    return EndedBatch(*extract_transitions(raw, max_episode_steps), np.append(np.diff(episodes) > 0, True))


def check_length(dataset: EndedBatch, horizon_length: int) -> None:
    """Checks that a chunk of so many rows fits into a dataset.

    Raises:
        InputError: It does not.
    """
    if (rows := len(dataset.rewards)) < horizon_length:
        raise InputError(f"the dataset has {rows} transitions: set horizon_length to at most that")
