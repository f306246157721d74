"""Rules for whether an episode ends in a state: a learnt model predicts states, but not the ends of episodes.

The functions map states (..., S) of any framework, or of NumPy, to booleans (...), and only use operations that all of
these share. A state that is not finite also ends the episode, except in tasks that never end.

The conditions for Hopper, HalfCheetah, Walker2d, Ant and Humanoid are from MBPO and OfflineRL-Kit
(https://github.com/yihaosun1124/OfflineRL-Kit), the others from their environments. `shared.envs.families` maps
environments to these functions.
"""

import math
from collections.abc import Callable
from typing import Any

Terminated = Callable[[Any], Any]
"""Maps states (..., S) after a step to booleans (...): whether the episode ends there."""


def _finite(states: Any) -> Any:
    """Whether all components are finite, (...)."""
    return (abs(states) < math.inf).all(-1)


def _within(states: Any, bound: float) -> Any:
    """Whether the absolute values of all components are below a bound, (...)."""
    return (abs(states) < bound).all(-1)


def never(states: Any) -> Any:
    """No state ends an episode."""
    return states[..., 0] < -math.inf


def halfcheetah(states: Any) -> Any:
    """The simulation has diverged."""
    return ~_within(states, 100.0)


def hopper(states: Any) -> Any:
    """It has fallen, or the simulation has diverged; as in both sources, there is no lower bound."""
    height, angle = states[..., 0], states[..., 1]
    bounded = (states[..., 1:] < 100.0).all(-1)
    return ~(_finite(states) & bounded & (height > 0.7) & (abs(angle) < 0.2))


def ant(states: Any) -> Any:
    """It is too low, or has jumped off the ground."""
    height = states[..., 0]
    return ~(_finite(states) & (height >= 0.2) & (height <= 1.0))


def walker2d(states: Any) -> Any:
    """It has fallen, or the simulation has diverged."""
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
    """The tip of the upper pole is at a height of at most 1; both poles have the length 0.6."""
    first_sine, second_sine = states[..., 1], states[..., 2]
    first_cosine, second_cosine = states[..., 3], states[..., 4]
    height = 0.6 * (first_cosine + first_cosine * second_cosine - first_sine * second_sine)
    return ~(_finite(states) & (height > 1.0))


def mountain_car(states: Any) -> Any:
    """The car is on the hill and does not roll back."""
    position, velocity = states[..., 0], states[..., 1]
    return ~(_finite(states) & ((position < 0.45) | (velocity < 0.0)))
