"""Tasks with a goal, and whether a step has reached it."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from shared.envs.families import known


def has_goals(env_id: str) -> bool:
    """Whether episodes of an environment, or of one of D4RL's datasets, succeed or fail."""
    facts = known(env_id)
    return facts is not None and facts.has_goals


def tasks_of(env: gymnasium.Env) -> Sequence[dict[str, Any] | None]:
    """The options of `reset` for each of an environment's tasks, which episodes take in turn; None without tasks."""
    return env.get_wrapper_attr("tasks") if env.has_wrapper_attr("tasks") else (None,)


def state_of(observation: Any) -> Any:
    """The state in an observation, which may also contain a goal."""
    return observation["observation"] if isinstance(observation, Mapping) else observation


def is_goal(reward: float, info: Mapping[str, Any]) -> bool:
    """Whether a step has reached the goal: by the environment's statement, else by a positive reward.

    The statement's name differs between packages: D4RL's, ours or OGBench's, and Gymnasium-Robotics'.
    """
    return next((bool(info[name]) for name in ("goal_achieved", "success", "is_success") if name in info), reward > 0)
