"""Data for dynamics models: transitions with a known next state, and windows of transitions for comparison."""

from typing import Any, NamedTuple

import numpy as np

from shared.data.transitions import Batch, ended_by_time, extract_transitions, learnt_actions
from shared.envs.families import known
from shared.errors import InputError

# In D4RL's files of these, a terminal's next row is another episode's: a model would learn a jump that never happens.
_FALLING = ("hopper", "halfcheetah", "walker2d")


# The most rows that are held out
_MOST_HELD_OUT = 1000


class Split(NamedTuple):
    """The split of a dataset of N rows for an ensemble of E members, drawn once.

    Attributes:
        training: (N - H,), the rows to learn from.
        holdout: (H,), the other rows.
        bootstrap: (E, N - H), indices into `training`: each member's rows.
    """

    training: np.ndarray
    holdout: np.ndarray
    bootstrap: np.ndarray


class Draws(NamedTuple):
    """The random draws for one step of a model from n states.

    Attributes:
        normals: (E, n, S + 1), for each member's change of the state, and its reward.
        chosen: (n,), integers: the elite that predicts each row; 0 is the best.
    """

    normals: Any
    chosen: Any


class ModelSizes(NamedTuple):
    """The sizes of a model: of states and actions, its number of members, and its number of elites, which predict."""

    state_dim: int
    action_dim: int
    n_ensemble: int
    n_elites: int


class Step(NamedTuple):
    """A model's prediction of one step from n states.

    Attributes:
        next_observations: (n, S).
        rewards: (n,), minus the penalty.
        terminals: (n,), true if the episode ends.
        raw_rewards: (n,), as predicted.
        penalties: (n,), the members' uncertainty; 0 if it is not subtracted from rewards.
    """

    next_observations: Any
    rewards: Any
    terminals: Any
    raw_rewards: Any
    penalties: Any


def held_out_rows(ratio: float, num_rows: int) -> int:
    """The number of rows to hold out from all members: a share of the dataset, but at most a thousand."""
    return min(int(ratio * num_rows), _MOST_HELD_OUT)


def fit_scaler(dataset: Batch, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population deviation (S + A,) of the inputs in these rows; constant inputs are not scaled."""
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
    """Extracts the transitions whose next states a model may learn, by OfflineRL-Kit's rule.

    For Hopper, HalfCheetah and Walker2d, a terminal row is kept only if the file itself states its next observation.
    Rows that a time limit ended are dropped, as is the last row. D4RL's own rule applies to its other tasks.

    Args:
        raw: The arrays of a dataset, N rows; if they include `next_observations`, as Minari's do, all rows are kept.
        task: The name of the dataset or its environment.
        max_episode_steps: Time limit in steps; used only if there are no `timeouts`.
        next_observations: (N, S), if D4RL's file has them; otherwise None.
        own: Whether the dataset is not D4RL's; terminal rows are then dropped for every task.

    Raises:
        InputError: No transition is left, or neither timeouts nor a time limit say where episodes end.
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
    """Rows (N,) that a time limit ended. Without `timeouts`, steps are counted from 0 after every terminal.

    D4RL's own counter starts from 1 after a terminal, but here the dropped terminal row does not count.
    """
    if "timeouts" in raw or max_episode_steps is None:
        return ended_by_time(raw, max_episode_steps)
    rows = np.arange(len(raw["rewards"]))
    ends = np.flatnonzero(raw["terminals"].astype(bool))
    begun = np.append(0, ends + 1)[np.searchsorted(ends, rows)]
    return (rows - begun + 1) % max_episode_steps == 0


def find_windows(dataset: Batch, length: int) -> tuple[np.ndarray, int]:
    """Finds all windows of consecutive transitions, in which each begins in the state where the previous one ended.

    Args:
        dataset: N transitions.
        length: The most transitions in a window.

    Returns:
        The first rows (W,) of the windows, and their length, which is less than `length` if no episode is long enough.
    """
    same = (dataset.next_observations[:-1] == dataset.observations[1:]).all(axis=1)
    linked = np.append(same & (dataset.terminals[:-1] == 0.0), False)
    length = min(length, int(np.diff(np.flatnonzero(~linked), prepend=-1).max()))
    # Running count of links between rows: a window is unbroken if all links in it exist.
    held = np.append(0, np.cumsum(linked))
    starts = np.arange(len(linked) - length + 1)
    return starts[held[starts + length - 1] - held[starts] == length - 1], length
