"""Where an episode ends, told from a state alone: a learnt model predicts states, and no end of an episode.

The functions take states (..., S) of any framework, NumPy's arrays included, and return booleans (...). They use what
all of them share. No comparison holds for NaN, so a state ends its episode if a number that its condition looks at is
NaN. That is any number for halfcheetah, hopper, ant and walker2d; for humanoid and pen it is the height alone, and in
OfflineRL-Kit not even that.

The conditions are those of MBPO and of OfflineRL-Kit (https://github.com/yihaosun1124/OfflineRL-Kit).
"""

import math
import re
from collections.abc import Callable
from typing import Any

from shared.errors import InputError

Terminated = Callable[[Any], Any]
"""From states (..., S) after a step to booleans (...): whether the episode ends there."""


def _finite(states: Any) -> Any:
    """Whether all components are numbers, (...)."""
    return (abs(states) < math.inf).all(-1)


def _within(states: Any, bound: float) -> Any:
    """Whether all components lie between both bounds, (...)."""
    return (abs(states) < bound).all(-1)


def never(states: Any) -> Any:
    """No state ends an episode."""
    return states[..., 0] < -math.inf


def halfcheetah(states: Any) -> Any:
    """The simulation has left all bounds."""
    return ~_within(states, 100.0)


def hopper(states: Any) -> Any:
    """It has fallen, or has left all bounds; there is no lower bound, as in both sources."""
    height, angle = states[..., 0], states[..., 1]
    bounded = (states[..., 1:] < 100.0).all(-1)
    return ~(_finite(states) & bounded & (height > 0.7) & (abs(angle) < 0.2))


def ant(states: Any) -> Any:
    """It lies, or has jumped off the ground."""
    height = states[..., 0]
    return ~(_finite(states) & (height >= 0.2) & (height <= 1.0))


def walker2d(states: Any) -> Any:
    """It has fallen, or has left all bounds."""
    height, angle = states[..., 0], states[..., 1]
    return ~(_within(states, 100.0) & (height > 0.8) & (height < 2.0) & (angle > -1.0) & (angle < 1.0))


def humanoid(states: Any) -> Any:
    """It has fallen, or has jumped."""
    height = states[..., 0]
    return ~((height >= 1.0) & (height <= 2.0))


def pen(states: Any) -> Any:
    """The hand has dropped the pen."""
    return ~(states[..., 26] >= 0.075)


# What a task's name contains, and the function; the first that fits counts.
_FAMILIES: dict[str, Terminated] = {
    "halfcheetahvel": never,
    "halfcheetah": halfcheetah,
    "hopper": hopper,
    "ant": ant,
    "walker2d": walker2d,
    "point2denv": never,
    "point2dwallenv": never,
    "pendulum": never,
    "humanoid": humanoid,
    r"\bpen": pen,
    r"\bdoor": never,
}


def termination(task: str) -> Terminated:
    """The function of a task, by the name of a dataset, such as `hopper-medium-v2`, or of an environment.

    Raises:
        InputError: Nobody knows where its episodes end.
    """
    for family, terminated in _FAMILIES.items():
        if re.search(family, task.lower()):
            return terminated
    known = "halfcheetah, hopper, walker2d, ant, humanoid, pendulum, pen or door"
    raise InputError(f"nothing tells from a state of {task!r} whether its episode ends: set env to one of {known}")
