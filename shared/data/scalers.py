"""Scales states, actions and rewards as d3rlpy does, by statistics of the training transitions.

States are `(s - mean) / std` everywhere in this project. Therefore `min_max` is a middle and half a range here, for
actions too. That agrees with d3rlpy's own order of operations up to float32's precision. An empty range, which d3rlpy
turns into NaN or infinities, is an error here, and so is a setting without effect.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from shared.data.transitions import ended_by_time, episode_ends, extract_transitions
from shared.errors import InputError

EPSILON = 1e-3
"""Added to the standard deviations of states and of rewards."""

# Settings of some reward scalers in addition to the factor, with their values if they are not set
_OWN: dict[str, dict[str, Any]] = {
    "clip": {"reward_low": None, "reward_high": None},
    "shift": {"reward_shift": 0.0, "multiply_first": False},
}


def state_statistics(scaler: str, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The offset and the scale of states.

    Args:
        scaler: `standard`, or `min_max`, which maps each component's minimum to -1 and its maximum to 1.
        observations: (N, S).

    Returns:
        The offset to subtract, (S,), and the scale to divide by, (S,), float32. They are computed in float64.

    Raises:
        InputError: A component of the states is constant, and so has no range.
    """
    if scaler == "min_max":
        return _middle_and_half("states", observations, "observation_scaler to standard")
    mean, std = observations.mean(axis=0, dtype=np.float64), observations.std(axis=0, dtype=np.float64)
    return mean.astype(np.float32), (std + EPSILON).astype(np.float32)


def action_statistics(actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The offset and the scale of actions that map the data's actions to [-1, 1].

    Args:
        actions: (N, A).

    Returns:
        The offset to subtract, (A,), and the scale to divide by, (A,), float32.

    Raises:
        InputError: A component of the actions is constant, and so has no range.
    """
    return _middle_and_half("actions", actions, "action_scaler to none")


def _middle_and_half(what: str, values: np.ndarray, otherwise: str) -> tuple[np.ndarray, np.ndarray]:
    low, high = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
    for component in np.flatnonzero(low == high)[:1]:
        raise InputError(
            f"component {component} of the {what} is always {low[component]:g} and so has no range: set {otherwise}"
        )
    return ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


def episode_returns(raw: dict[str, np.ndarray], max_episode_steps: int | None) -> np.ndarray:
    """The returns (E,), float64, of complete episodes, summed over transitions only.

    Therefore the reward of a row that a time limit ended does not count, unless `raw` states its next observation.

    Raises:
        InputError: No episode is complete, or neither timeouts nor a time limit say where episodes end.
    """
    ends = episode_ends(raw, max_episode_steps)
    if not len(ends):
        raise InputError("no episode of the dataset is complete: set reward_scaler to another than return")
    rewards = raw["rewards"].astype(np.float64)
    if "next_observations" not in raw:
        rewards[ended_by_time(raw, max_episode_steps)] = 0
    return np.add.reduceat(rewards[: ends[-1] + 1], np.append(0, ends[:-1] + 1))


def check_rewards(config: Any) -> None:
    """Refuses settings without effect, and a scaler without its bounds.

    Args:
        config: A `RewardsConfig`.

    Raises:
        InputError: There is such a setting.
    """
    scaler = config.reward_scaler
    for owner, settings in {"one": {"reward_multiplier": 1.0}, **_OWN}.items():
        has_effect = scaler == owner or (owner == "one" and scaler != "none")
        for name, unset in settings.items():
            if getattr(config, name) != unset and not has_effect:
                others = "" if owner == "one" else f" {owner}"
                raise InputError(
                    f"{name} has no effect with reward_scaler {scaler}: set a reward_scaler{others} beside it"
                )
    bounds = [bound for bound in (config.reward_low, config.reward_high) if bound is not None]
    if scaler == "clip" and (not bounds or sorted(set(bounds)) != bounds):
        raise InputError("rewards have no bounds to be clipped at: set reward_low, reward_high above it, or both")


def reward_scale(config: Any, raw: dict[str, np.ndarray], max_episode_steps: int | None) -> Callable[[Any], Any]:
    """Returns a function that scales rewards, of a dataset or of one environment step.

    Args:
        config: A `RewardsConfig` whose `reward_scaler` is not `none`.
        raw: The arrays of the dataset, whose transitions or episodes determine the statistics.
        max_episode_steps: Time limit in steps; used only if there are no `timeouts`.

    Raises:
        InputError: All rewards, or all returns, are equal, but the scaler divides by their range.
    """
    factor = config.reward_multiplier
    if config.reward_scaler == "multiply":
        return lambda reward: factor * reward
    if config.reward_scaler == "clip":
        return lambda reward: factor * np.clip(reward, config.reward_low, config.reward_high)
    if config.reward_scaler == "min_max":
        low, high = _range("rewards", extract_transitions(raw, max_episode_steps).rewards)
        return lambda reward: factor * (reward - low) / (high - low)
    if config.reward_scaler == "standard":
        rewards = extract_transitions(raw, max_episode_steps).rewards
        mean, std = float(rewards.mean()), float(rewards.std()) + EPSILON
        return lambda reward: factor * (reward - mean) / std
    if config.reward_scaler == "return":
        low, high = _range("returns", episode_returns(raw, max_episode_steps))
        return lambda reward: factor * reward / (high - low)
    if config.multiply_first:
        return lambda reward: reward * factor + config.reward_shift
    return lambda reward: (config.reward_shift + reward) * factor


def _range(what: str, values: np.ndarray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if low == high:
        raise InputError(f"all {what} of the dataset are {low:g} and so have no range: set reward_scaler to another")
    return low, high
