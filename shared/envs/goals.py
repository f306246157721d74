"""Tasks with a goal: which they are, and whether a step has reached it."""

from collections.abc import Mapping
from typing import Any

from shared.names import OGBENCH_ENVS

_FAMILIES = ("antmaze", "pen", "door", "hammer", "relocate")


def has_goals(env_id: str) -> bool:
    """Whether episodes of an environment, or of a dataset of this name, succeed or fail."""
    return env_id.startswith(OGBENCH_ENVS) or env_id.rpartition("/")[2].lower().startswith(_FAMILIES)


def is_goal(reward: float, info: Mapping[str, Any]) -> bool:
    """Whether a step has reached the goal: as the environment says, else where it pays at all."""
    return bool(info["goal_achieved"]) if "goal_achieved" in info else reward > 0
