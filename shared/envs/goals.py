"""Tasks with a goal, and whether a step has reached it."""

from collections.abc import Mapping
from typing import Any

from shared.envs.families import known


def has_goals(env_id: str) -> bool:
    """Whether episodes of an environment, or of one of D4RL's datasets, succeed or fail."""
    facts = known(env_id)
    return facts is not None and facts.has_goals


def is_goal(reward: float, info: Mapping[str, Any]) -> bool:
    """Whether a step has reached the goal: by the environment's statement, else by a positive reward."""
    return bool(info["goal_achieved"]) if "goal_achieved" in info else reward > 0
