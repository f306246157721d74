"""After how many steps an episode in an environment is cut that would not end it itself."""

import functools
from collections.abc import Mapping

import numpy as np

from shared.data.transitions import episode_ends
from shared.envs.registry import MAX_EPISODE_STEPS, time_limit
from shared.runs.progress import warn


def cut_after(given: int | None, env_id: str, raw: Mapping[str, np.ndarray] | None = None) -> int | None:
    """The steps; None where the environment's own time limit counts.

    Args:
        given: The setting `max_episode_steps`, which goes before everything else.
        env_id: The environment.
        raw: The arrays of the dataset, whose longest episode counts where the environment has no time limit.
    """
    if given is not None or time_limit(env_id) is not None:
        return given
    return MAX_EPISODE_STEPS if raw is None else longest_episode(raw) or MAX_EPISODE_STEPS


def longest_episode(raw: Mapping[str, np.ndarray]) -> int | None:
    """Rows of the longest complete episode of a dataset; None where there is none, or nothing says where they end."""
    if not {"timeouts", "trajectory_ends"} & raw.keys():
        return None
    ends = episode_ends(dict(raw), None)
    return int(np.diff(ends, prepend=-1).max()) if len(ends) else None


@functools.cache  # once for all seeds, and for all evaluators
def tell_of_cut(env_id: str, steps: int) -> None:
    """Says after how many steps episodes are cut, of an environment that has no time limit."""
    if time_limit(env_id) is None:
        warn(
            f"{env_id} has no time limit: an episode is cut after {steps} steps; max_episode_steps sets another number"
        )
