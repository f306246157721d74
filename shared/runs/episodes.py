"""The time limit of episodes in an environment that may not have its own."""

import functools
from collections.abc import Mapping

import numpy as np

from shared.data.transitions import episode_ends
from shared.envs.registry import MAX_EPISODE_STEPS, time_limit
from shared.runs.progress import warn


def cut_after(given: int | None, env_id: str, raw: Mapping[str, np.ndarray] | None = None) -> int | None:
    """Returns the step after which an episode is cut, or None to use the environment's own time limit.

    Args:
        given: The setting `max_episode_steps`, which takes precedence.
        env_id: The environment.
        raw: The arrays of the dataset, whose longest episode is used if the environment has no time limit.
    """
    if given is not None or time_limit(env_id) is not None:
        return given
    return MAX_EPISODE_STEPS if raw is None else longest_episode(raw) or MAX_EPISODE_STEPS


def longest_episode(raw: Mapping[str, np.ndarray]) -> int | None:
    """The length of a dataset's longest complete episode, or None if there is none or its ends are unknown."""
    if not {"timeouts", "trajectory_ends"} & raw.keys():
        return None
    ends = episode_ends(dict(raw), None)
    return int(np.diff(ends, prepend=-1).max()) if len(ends) else None


@functools.cache  # once for all seeds, and for all evaluators
def tell_of_cut(env_id: str, steps: int) -> None:
    """Warns that episodes are cut after this many steps, if the environment has no time limit."""
    if time_limit(env_id) is None:
        warn(
            f"{env_id} has no time limit: an episode is cut after {steps} steps; max_episode_steps sets another number"
        )
