"""Where an episode ends, told from a state alone: a learnt model predicts states, and no end of an episode.

The functions take states (..., S) of any framework, NumPy's arrays included, and return booleans (...). They use what
all of them share. A state with a number that is not finite has ended the episode, but for a task that never ends.

The conditions of Hopper, HalfCheetah, Walker2d, Ant and Humanoid are those of MBPO and of OfflineRL-Kit
(https://github.com/yihaosun1124/OfflineRL-Kit), the others their environments' own. `shared.envs.families` says to
which environment each belongs.
"""

import math
from collections.abc import Callable
from typing import Any

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
    return ~(_finite(states) & (height >= 1.0) & (height <= 2.0))


def pen(states: Any) -> Any:
    """The hand has dropped the pen."""
    return ~(_finite(states) & (states[..., 26] >= 0.075))


def inverted_pendulum(states: Any) -> Any:
    """The pole has fallen."""
    return ~(_finite(states) & (abs(states[..., 1]) <= 0.2))


def inverted_double_pendulum(states: Any) -> Any:
    """The tip of the upper pole has sunk to a height of 1; both poles are 0.6 long."""
    first_sine, second_sine = states[..., 1], states[..., 2]
    first_cosine, second_cosine = states[..., 3], states[..., 4]
    height = 0.6 * (first_cosine + first_cosine * second_cosine - first_sine * second_sine)
    return ~(_finite(states) & (height > 1.0))


def mountain_car(states: Any) -> Any:
    """The car is on the hill and does not roll back."""
    position, velocity = states[..., 0], states[..., 1]
    return ~(_finite(states) & ((position < 0.45) | (velocity < 0.0)))
