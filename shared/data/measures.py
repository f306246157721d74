"""How good a policy is by a dataset alone: what an estimated value function says of it, in numbers of float64.

All but the value of first states are means over the transitions of all episodes together, so long episodes weigh more.
An episode is what lies between two ends in the file, however long it is.
"""

import numpy as np

from shared.data.episodes import Episodes, of_transitions
from shared.errors import InputError


def find_episodes(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> Episodes:
    """The complete episodes of a dataset's transitions, of which there must be one.

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
    """The transitions (n,) bool of episodes whose return is the threshold or more.

    Raises:
        InputError: No episode succeeds, so soft off-policy classification has no value.
    """
    succeeded = episodes.returns >= threshold
    if not succeeded.any():
        best = f"the best one returns {episodes.returns.max():g}"
        raise InputError(f"no episode reaches a return_threshold of {threshold:g}, {best}: set it to that at most")
    return np.repeat(succeeded, episodes.lengths)


def initial_state_value(values: np.ndarray, episodes: Episodes) -> np.ndarray:
    """The policy's value (E,) in the first state of each episode, out of that in every state (n,)."""
    return values[episodes.starts].astype(np.float64)


def soft_opc(q: np.ndarray, succeeded: np.ndarray) -> float:
    """Soft off-policy classification: how much more the data's actions are worth where an episode succeeds.

    Args:
        q: (n,), the value of the data's action in each transition.
        succeeded: (n,) bool, of which some are true.
    """
    q = q.astype(np.float64)
    return float(q[succeeded].mean() - q.mean())


def td_error(
    q: np.ndarray, rewards: np.ndarray, next_values: np.ndarray, terminals: np.ndarray, discount: float
) -> float:
    """The mean squared difference between a transition's value and its reward plus the value after it.

    Args:
        q: (n,), the value of the data's action.
        rewards: (n,).
        next_values: (n,), the value of the policy's action in the next state.
        terminals: (n,), 1 where nothing follows.
        discount: Of the value behind.
    """
    target = rewards.astype(np.float64) + discount * (1.0 - terminals) * next_values.astype(np.float64)
    return float(np.square(q - target).mean())


def discounted_advantage(q: np.ndarray, values: np.ndarray, episodes: Episodes, discount: float) -> float:
    """The mean, over all transitions, of the discounted sum of the data's advantages from there to its episode's end.

    Args:
        q: (n,), the value of the data's action.
        values: (n,), that of the policy's.
        episodes: Whose transitions these are.
        discount: Of a later advantage.
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
    """The mean squared distance between two policies' actions, (n, A) each, summed over an action's components."""
    return float(np.square(actions.astype(np.float64) - others).sum(axis=1).mean())
