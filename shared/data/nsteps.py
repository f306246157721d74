"""Transitions over several steps: a sum of discounted rewards, and the state after it."""

import numpy as np

from shared.data.transitions import Batch, ended_by_time, learnt_actions, observed


def extract_n_steps(
    raw: dict[str, np.ndarray],
    max_episode_steps: int | None = None,
    *,
    n_steps: int,
    discount: float,
    frame_stack: int = 1,
) -> Batch:
    """Transitions over up to n steps of one episode, otherwise as `extract_transitions`, whose rows they begin in.

    Towards an episode's end they have fewer steps. A terminal state ends them, with its reward. A time limit ends them
    in the last state that is known, whose value counts.

    A target of one step is `rewards + discount * value * (1 - terminals)`. Over m steps the value counts
    `discount ** m`. So `terminals` is the share of the value that does not count. The share is 1 - discount ** (m - 1),
    and 1 where the episode ended in a terminal state.

    Args:
        raw: The arrays of a dataset, N rows, with `next_observations` or without.
        max_episode_steps: Time limit of the environment in steps; used only if there are no `timeouts`.
        n_steps: 1 or more.
        discount: Of the rewards and of the value.
        frame_stack: Of images, how many frames an observation shows.

    Returns:
        The dataset of n <= N transitions, float32; finite actions are int64, images `Stacks` of bytes.

    Raises:
        InputError: Neither timeouts nor a time limit say where episodes end.
    """
    size, timeouts = len(raw["rewards"]), ended_by_time(raw, max_episode_steps)
    knows_all = "next_observations" in raw
    # In D4RL's layout nothing is known behind a row that the time limit ended, a terminal one or not.
    terminated = raw["terminals"].astype(bool) & (knows_all | ~timeouts)
    rows = np.arange(size) if knows_all else np.flatnonzero(~timeouts[:-1])
    ends = np.flatnonzero(terminated | timeouts)
    ends = np.append(ends, size - 1) if not len(ends) or ends[-1] < size - 1 else ends
    last = ends[np.searchsorted(ends, rows)]
    # One row behind the last reward that counts: the last row's own counts where what came after it is known.
    behind = np.minimum(rows + n_steps, last + (terminated[last] | knows_all))
    rewards = np.zeros(len(rows))
    for step in range(n_steps):
        counts = rows + step < behind
        rewards[counts] += discount**step * raw["rewards"][rows[counts] + step].astype(np.float64)
    ended = terminated[last] & (behind > last)
    shown, following = observed(raw, timeouts, rows, behind, frame_stack)
    return Batch(
        observations=shown,
        actions=learnt_actions(raw["actions"][rows]),
        rewards=rewards.astype(np.float32),
        next_observations=following,
        terminals=(1.0 - discount ** (behind - rows - 1.0) * ~ended).astype(np.float32),
    )
