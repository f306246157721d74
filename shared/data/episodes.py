"""Episodes: where they begin and end in a dataset's rows or transitions, and their returns.

All code that needs episodes gets them from here, cut at terminals and time limits by `episode_ends`. The only
exceptions are papers' other rules, which apply to D4RL's own names, because published scores depend on them.
"""

from typing import NamedTuple

import numpy as np

from shared.data.transitions import ended_by_time, episode_ends


class Episodes(NamedTuple):
    """The complete episodes of a dataset, one after the other, from its first row or transition on.

    Attributes:
        starts: (E,), the first row or transition of each episode.
        lengths: (E,), the number of rows or transitions.
        returns: (E,) float64, the sum of all rewards, including the row that a time limit ended.
    """

    starts: np.ndarray
    lengths: np.ndarray
    returns: np.ndarray

    @property
    def size(self) -> int:
        """Number of rows or transitions in complete episodes, n."""
        return int(self.lengths.sum())

    def slices(self) -> list[slice]:
        """The rows or transitions of each episode, as slices."""
        return [slice(start, start + length) for start, length in zip(*map(np.ndarray.tolist, self[:2]), strict=True)]


def of_rows(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> Episodes:
    """Finds the complete episodes in a dataset's rows; there may be none.

    Args:
        raw: The arrays of a dataset.
        max_episode_steps: Time limit in steps; used only if there are no `timeouts`.

    Raises:
        InputError: Neither timeouts nor a time limit say where episodes end.
    """
    ends = episode_ends(raw, max_episode_steps)
    lengths = np.diff(ends, prepend=-1)
    starts = ends - lengths + 1
    rewards = raw["rewards"][: ends[-1] + 1 if len(ends) else 0].astype(np.float64)
    return Episodes(starts, lengths, np.add.reduceat(rewards, starts) if len(ends) else np.empty(0))


def of_transitions(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> Episodes:
    """Finds the complete episodes in the transitions of `extract_transitions`; episodes without one are left out.

    Arguments and errors are the same as for `of_rows`.
    """
    found = of_rows(raw, max_episode_steps)
    episodes, lengths = np.unique(of_each_transition(raw, max_episode_steps), return_counts=True)
    complete = episodes < len(found.starts)
    episodes, lengths = episodes[complete], lengths[complete]
    return Episodes(np.cumsum(lengths) - lengths, lengths, found.returns[episodes])


def of_each_transition(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> np.ndarray:
    """The episode number, from 0, of each transition (n,) of `extract_transitions`; an incomplete last one counts too.

    Raises:
        InputError: As for `of_rows`.
    """
    ends = episode_ends(raw, max_episode_steps)
    if "next_observations" in raw:
        rows = np.arange(len(raw["rewards"]))
    else:
        rows = np.flatnonzero(~ended_by_time(raw, max_episode_steps)[:-1])
    return np.searchsorted(ends, rows)
