"""Transitions over several steps, with the discounted sum of their rewards."""

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
    """Extracts transitions over up to n steps of an episode, from the same rows as `extract_transitions`.

    Near an episode's end, transitions have fewer steps. A terminal state ends them, including its reward. A time limit
    ends them in the last known state, whose value is used.

    A one-step target is `rewards + discount * value * (1 - terminals)`. Over m steps, the value's weight should be
    `discount ** m`. Therefore `terminals` is the share of the value that does not count: 1 - discount ** (m - 1), or 1
    if the episode ended in a terminal state.

    Args:
        raw: The arrays of a dataset, N rows, with or without `next_observations`.
        max_episode_steps: Time limit of the environment in steps; used only if there are no `timeouts`.
        n_steps: 1 or more.
        discount: The discount per step, of rewards and of the value.
        frame_stack: Number of frames in an observation of images.

    Returns:
        The dataset of n <= N transitions, float32; finite actions are int64, images `Stacks` of bytes.

    Raises:
        InputError: Neither timeouts nor a time limit say where episodes end.
    """
    size, timeouts = len(raw["rewards"]), ended_by_time(raw, max_episode_steps)
    knows_all = "next_observations" in raw
    # In D4RL's layout, the next state of a row that a time limit ended is unknown, even if the row is terminal.
    terminated = raw["terminals"].astype(bool) & (knows_all | ~timeouts)
    rows = np.arange(size) if knows_all else np.flatnonzero(~timeouts[:-1])
    ends = np.flatnonzero(terminated | timeouts)
    ends = np.append(ends, size - 1) if not len(ends) or ends[-1] < size - 1 else ends
    last = ends[np.searchsorted(ends, rows)]
    # One after the last reward that counts: the episode's last row counts only if its next state is known.
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
