"""Measures a policy on a dataset alone, by an estimated value function; computed in float64.

All measures except the value of first states are means over the transitions of all episodes, so long episodes have more
weight. An episode is the part of a file between two ends, whatever its length.
"""

import numpy as np

from shared.data.episodes import Episodes, of_transitions
from shared.errors import InputError


def find_episodes(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> Episodes:
    """Finds the complete episodes in a dataset's transitions, of which there must be at least one.

    Args:
        raw: The arrays of a dataset.
        max_episode_steps: Time limit in steps; used only if there are no `timeouts`.

    Raises:
        InputError: No episode is complete, or neither timeouts nor a time limit say where episodes end.
    """
    episodes = of_transitions(raw, max_episode_steps)
    if not len(episodes.starts):
        raise InputError("no episode of the dataset is complete, so there is none to judge a policy by: take another")
    return episodes


def successes(episodes: Episodes, threshold: float) -> np.ndarray:
    """Marks the transitions (n,) of episodes whose return reaches the threshold.

    Raises:
        InputError: No episode succeeds, so soft off-policy classification is undefined.
    """
    succeeded = episodes.returns >= threshold
    if not succeeded.any():
        best = f"the best one returns {episodes.returns.max():g}"
        raise InputError(f"no episode reaches a return_threshold of {threshold:g}, {best}: set it to that at most")
    return np.repeat(succeeded, episodes.lengths)


def initial_state_value(values: np.ndarray, episodes: Episodes) -> np.ndarray:
    """The policy's value (E,) in the first state of each episode, from its values in all states (n,)."""
    return values[episodes.starts].astype(np.float64)


def soft_opc(q: np.ndarray, succeeded: np.ndarray) -> float:
    """Soft off-policy classification: the mean value of the data's actions in successful episodes, minus that in all.

    Args:
        q: (n,), the value of the data's action in each transition.
        succeeded: (n,) bool, not all false.
    """
    q = q.astype(np.float64)
    return float(q[succeeded].mean() - q.mean())


def td_error(
    q: np.ndarray, rewards: np.ndarray, next_values: np.ndarray, terminals: np.ndarray, discount: float
) -> float:
    """The mean squared difference between a transition's value and its reward plus the discounted next value.

    Args:
        q: (n,), the value of the data's action.
        rewards: (n,).
        next_values: (n,), the value of the policy's action in the next state.
        terminals: (n,), 1 if nothing follows.
        discount: The discount of the next value.
    """
    target = rewards.astype(np.float64) + discount * (1.0 - terminals) * next_values.astype(np.float64)
    return float(np.square(q - target).mean())


def discounted_advantage(q: np.ndarray, values: np.ndarray, episodes: Episodes, discount: float) -> float:
    """The discounted sum of the data's advantages from a transition to its episode's end, averaged over transitions.

    Args:
        q: (n,), the value of the data's action.
        values: (n,), the value of the policy's action.
        episodes: The episodes of these transitions.
        discount: The discount of later advantages.
    """
    advantages = (q.astype(np.float64) - values.astype(np.float64)).tolist()
    total = 0.0
    for start, length in zip(episodes.starts.tolist(), episodes.lengths.tolist(), strict=True):
        after = 0.0
        for row in range(start + length - 1, start - 1, -1):
            after = advantages[row] + discount * after
            total += after
    return total / len(advantages)


def action_difference(actions: np.ndarray, others: np.ndarray) -> float:
    """The mean squared distance between actions (n, A) of two policies, summed over an action's components."""
    return float(np.square(actions.astype(np.float64) - others).sum(axis=1).mean())
