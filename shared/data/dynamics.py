"""Data for dynamics models: transitions whose next state is known, and whole windows to compare a model with."""

from typing import Any, NamedTuple

import numpy as np

from shared.data.transitions import Batch, ended_by_time, extract_transitions, learnt_actions
from shared.envs.families import known
from shared.errors import InputError

# Of these, D4RL's next row after a terminal is another episode's: a model would learn a jump that never happens.
_FALLING = ("hopper", "halfcheetah", "walker2d")


# Rows that are held out at most
_MOST_HELD_OUT = 1000


class Split(NamedTuple):
    """The split of a dataset of N rows for an ensemble of E members, drawn once.

    Attributes:
        training: (N - H,), the rows that are learnt from.
        holdout: (H,), the others.
        bootstrap: (E, N - H), places in `training`: which rows each member takes.
    """

    training: np.ndarray
    holdout: np.ndarray
    bootstrap: np.ndarray


class Draws(NamedTuple):
    """The random numbers that one step of a model draws for n states.

    Attributes:
        normals: (E, n, S + 1), for each member's change of the state, and its reward.
        chosen: (n,), whole numbers: which of the elites predicts each row, the best being 0.
    """

    normals: Any
    chosen: Any


class ModelSizes(NamedTuple):
    """Of a learnt model: sizes of a state and of an action, its members, and those of them that predict."""

    state_dim: int
    action_dim: int
    n_ensemble: int
    n_elites: int


class Step(NamedTuple):
    """A model's prediction of one step from n states.

    Attributes:
        next_observations: (n, S).
        rewards: (n,), less their penalty.
        terminals: (n,), true where the episode ends.
        raw_rewards: (n,), as predicted.
        penalties: (n,), how unsure the members are; 0 where that is taken off no reward.
    """

    next_observations: Any
    rewards: Any
    terminals: Any
    raw_rewards: Any
    penalties: Any


def held_out_rows(ratio: float, num_rows: int) -> int:
    """How many rows no member learns from: a share of all, a thousand at most."""
    return min(int(ratio * num_rows), _MOST_HELD_OUT)


def fit_scaler(dataset: Batch, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population deviation (S + A,) of the inputs in these rows; a constant one is not scaled."""
    inputs = np.concatenate([dataset.observations[rows], dataset.actions[rows]], axis=1)
    mean, std = inputs.mean(axis=0), inputs.std(axis=0)
    return mean, np.where(std < 1e-12, np.ones_like(std), std)


def extract_known(
    raw: dict[str, np.ndarray],
    task: str,
    max_episode_steps: int | None = None,
    next_observations: np.ndarray | None = None,
    own: bool = False,
) -> Batch:
    """The transitions of a dataset whose next states a model may learn, by the rule of OfflineRL-Kit.

    Of Hopper, HalfCheetah and Walker2d a terminal row is kept only where the file itself says what came after it. Rows
    that a time limit ended are dropped, as is the last row. Of other tasks of D4RL's the rule is D4RL's own.

    Args:
        raw: The arrays of a dataset, N rows; with `next_observations` in them all rows are kept, as of Minari's.
        task: Names the dataset or its environment.
        max_episode_steps: Time limit in steps; used only if there are no `timeouts`.
        next_observations: (N, S), where D4RL's file has them; None: it has none.
        own: Whether the dataset is none of D4RL's: then terminal rows are left out of any task.

    Raises:
        InputError: No transition is left, or neither timeouts nor a time limit say where episodes end.
    """
    facts = known(task)
    falls = facts is None or facts.family in _FALLING
    if "next_observations" in raw or not (own or falls):
        return extract_transitions(raw, max_episode_steps)
    terminals = raw["terminals"].astype(bool)
    if next_observations is None:
        kept = ~terminals & ~_ended_by_count(raw, max_episode_steps)
        following = raw["observations"][1:]
    else:
        kept = ~ended_by_time(raw, max_episode_steps)
        following = next_observations[:-1]
    rows = np.flatnonzero(kept[:-1])
    if not len(rows):
        raise InputError("the dataset holds no transition with a known next state: every row ends an episode")
    return Batch(
        observations=raw["observations"].take(rows, axis=0).astype(np.float32, copy=False),
        actions=learnt_actions(raw["actions"].take(rows, axis=0)),
        rewards=raw["rewards"][rows].astype(np.float32, copy=False),
        next_observations=following.take(rows, axis=0).astype(np.float32, copy=False),
        terminals=terminals[rows].astype(np.float32),
    )


def _ended_by_count(raw: dict[str, np.ndarray], max_episode_steps: int | None) -> np.ndarray:
    """Rows (N,) that a time limit ended. Without `timeouts` steps are counted, from 0 after a terminal too.

    D4RL's own counter stands at 1 there; a terminal row that is dropped does not count.
    """
    if "timeouts" in raw or max_episode_steps is None:
        return ended_by_time(raw, max_episode_steps)
    rows = np.arange(len(raw["rewards"]))
    ends = np.flatnonzero(raw["terminals"].astype(bool))
    begun = np.append(0, ends + 1)[np.searchsorted(ends, rows)]
    return (rows - begun + 1) % max_episode_steps == 0


def find_windows(dataset: Batch, length: int) -> tuple[np.ndarray, int]:
    """All windows of transitions, each of which begins where the one before ended.

    Args:
        dataset: N transitions.
        length: Transitions in a window, at most.

    Returns:
        The first rows (W,) of the windows, and their length: less than asked if no episode has as many on end.
    """
    same = (dataset.next_observations[:-1] == dataset.observations[1:]).all(axis=1)
    linked = np.append(same & (dataset.terminals[:-1] == 0.0), False)
    length = min(length, int(np.diff(np.flatnonzero(~linked), prepend=-1).max()))
    # Of each row, how many of the links before it hold: a window is unbroken where all within it do.
    held = np.append(0, np.cumsum(linked))
    starts = np.arange(len(linked) - length + 1)
    return starts[held[starts + length - 1] - held[starts] == length - 1], length
