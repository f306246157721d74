"""Preparation of a dataset: from its rows to an algorithm's training data."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from shared import names
from shared.data import scalers, sequences, transitions
from shared.data.episodes import Episodes, of_each_transition, of_transitions
from shared.data.goals import check_shares, extract_goals
from shared.data.held_out import Raw
from shared.data.rewards import AS_THEY_ARE, Rewards
from shared.envs.spaces import shape_of, size_of_statistics
from shared.errors import InputError
from shared.runs import own_data
from shared.runs.extraction import Extract, Steps, extract
from shared.runs.held_out import as_modified, divided, normalised
from shared.runs.opening import Opened
from shared.runs.origin import Origin, Statistics
from shared.runs.own_data import NO_PROMPTS, Prompts
from shared.runs.settings import (
    DatasetConfig,
    FinetuneConfig,
    GoalSettings,
    ImitationConfig,
    OfflineConfig,
    RewardsConfig,
    TransitionsConfig,
)
from shared.runs.validation import HeldOut, thinned


@dataclass(frozen=True)
class Preparation:
    """How an algorithm prepares a dataset.

    Attributes:
        extract: The kind of training data.
        rewards: How to change rewards, or to rank trajectories by them.
        normalise: Whether to normalise states to mean 0 and standard deviation 1.
        finite: Whether the algorithm's actions are finite; otherwise they are vectors.
    """

    extract: Extract = Extract.TRANSITIONS
    rewards: Rewards = AS_THEY_ARE
    normalise: bool = True
    finite: bool = False


AS_CORL = Preparation()
"""CORL's default: transitions with unchanged rewards and normalised states."""


class Prepared(NamedTuple):
    """The part of a `Task` that doesn't depend on the seed.

    Actions are still in the dataset's own units. A policy's actions are measured on the rows `measured`.
    """

    opened: Opened
    dataset: Any
    mean: np.ndarray
    std: np.ndarray
    origin: Origin | None
    step_reward: Callable[[float], float]
    measured: HeldOut | None = None
    held_out: Any = None
    prompts: Prompts = NO_PROMPTS


@runtime_checkable
class Discounted(Protocol):
    """Settings of an algorithm that discounts rewards."""

    @property
    def discount(self) -> float:
        """Discount per step."""


@runtime_checkable
class SequenceSettings(Protocol):
    """Settings of a sequence model; None means the default of its prompts."""

    @property
    def episode_len(self) -> int:
        """Steps after which an evaluated episode is cut."""

    @property
    def reward_scale(self) -> float | None:
        """Factor on returns-to-go."""

    @property
    def target_returns(self) -> tuple[float, ...] | None:
        """The returns with which you prompt the model."""


def prepare(config: DatasetConfig, opened: Opened, preparation: Preparation, origin: Origin | None) -> Prepared:
    """Makes an algorithm's training data.

    This follows CORL's order: extract transitions, change rewards or keep the best trajectories, then normalise states.
    A reward scaler from d3rlpy comes first, so that returns also use scaled rewards. An observation scaler replaces
    normalisation.

    Raises:
        InputError: The settings do not fit the dataset, or each other.
    """
    if preparation.extract is Extract.TRAJECTORIES:
        return _trajectories(config, opened, origin)
    if preparation.extract is Extract.GOALS:
        return _goals(config, opened, preparation, origin)
    steps = _steps(config, preparation)
    limit = opened.limit
    raw, held_out = divided(opened, _share(config))
    episodes = None if names.has_published_results(config.env) else of_transitions(raw, limit)
    _check_images(config, raw, preparation.normalise)
    unseen = held_out is not opened.read.raw
    if (scale := _reward_scale(config, raw, limit)) is not None:
        raw, held_out = _scaled(raw, scale), _scaled(held_out, scale) if held_out is not None and unseen else held_out
    extracted = extract(opened, raw, preparation.extract, steps)
    _check_room(config, len(extracted.rewards))
    change = _step_reward(config, extracted, opened.family, episodes, preparation.rewards)
    dataset = preparation.rewards.modified(extracted, opened.family, episodes)
    if episodes is not None and preparation.rewards != AS_THEY_ARE:
        own_data.tell_of_preparation(extracted, dataset, episodes)
    mean, std = _no_statistics(raw)
    if (statistics := _statistics(config, preparation.normalise, origin)) and not transitions.shows_images(raw):
        dataset, mean, std = transitions.normalise_states(dataset, statistics)
    prepared = Prepared(opened, dataset, mean, std, origin, change if scale is None else scale)
    if held_out is None:
        return prepared
    measured = transitions.extract_transitions(held_out, limit, frame_stack=opened.frame_stack)
    numbers = of_each_transition(held_out, limit)
    rows = thinned(HeldOut(measured.observations, measured.actions, measured.rewards, numbers, unseen))
    prepared = prepared._replace(measured=normalised(rows, mean, std))
    if not unseen:
        return prepared
    others = extract(opened, held_out, preparation.extract, steps)
    if preparation.rewards != AS_THEY_ARE:
        others = as_modified(others, extracted, dataset)
    return prepared._replace(held_out=None if others is None else normalised(others, mean, std))


def _step_reward(
    config: DatasetConfig, extracted: Any, family: str, episodes: Episodes | None, rewards: Rewards
) -> Callable[[float], float]:
    """The function that changes the rewards of environment steps if a run continues online."""
    kind = rewards if isinstance(config, FinetuneConfig) else AS_THEY_ARE
    return kind.change(extracted, family, episodes)


def _trajectories(config: DatasetConfig, opened: Opened, origin: Origin | None) -> Prepared:
    """Prepares whole trajectories. As in CORL, the statistics of states include the rows after the last trajectory."""
    assert isinstance(config, SequenceSettings)
    raw, held_out = divided(opened, _share(config))
    dataset = sequences.split_trajectories(raw, opened.limit)
    longest = int(sequences.trajectory_lengths(dataset).max())
    if longest > config.episode_len + 1:  # D4RL's antmaze has one step more
        raise InputError(f"a trajectory of the dataset has {longest} steps: set episode_len to at least {longest - 1}")
    scaler = config.observation_scaler
    own = sequences.state_statistics if scaler == "none" else partial(scalers.state_statistics, scaler)
    statistics = own if origin is None else origin.statistics(own)
    dataset, mean, std = sequences.normalise_states(dataset, raw["observations"], statistics)
    returns = dataset.returns[dataset.timesteps == 0]
    prompts = own_data.prompts(config.env, config.target_returns, config.reward_scale, returns)
    dataset = dataset._replace(returns=dataset.returns * np.float32(prompts.reward_scale))
    prepared = Prepared(opened, dataset, mean, std, origin, lambda reward: reward, prompts=prompts)
    if held_out is None:
        return prepared
    measured = sequences.split_trajectories(held_out, opened.limit)
    numbers, rewards = np.cumsum(measured.timesteps == 0), held_out["rewards"][: len(measured.actions)]
    unseen = held_out is not opened.read.raw
    rows = HeldOut(measured.observations, measured.actions, rewards, numbers, unseen)
    return prepared._replace(measured=normalised(rows, mean, std))


def _goals(config: DatasetConfig, opened: Opened, preparation: Preparation, origin: Origin | None) -> Prepared:
    """Prepares transitions that are learnt from with goals; the policy is measured with the ends of trajectories."""
    assert isinstance(config, GoalSettings)
    check_shares("value", config.value_goals)
    check_shares("actor", config.actor_goals)
    raw, held_out = divided(opened, _share(config))
    dataset = extract_goals(raw, opened.limit)
    _check_room(config, len(dataset.actions))
    mean, std = _no_statistics(raw)
    if statistics := _statistics(config, preparation.normalise, origin):
        dataset, mean, std = transitions.normalise_states(dataset, statistics)
    prepared = Prepared(opened, dataset, mean, std, origin, lambda reward: reward)
    if held_out is None:
        return prepared
    measured = extract_goals(held_out, opened.limit)
    unseen, without_rewards = held_out is not opened.read.raw, np.zeros(len(measured.actions), np.float32)
    goals = measured.observations[measured.last]
    rows = HeldOut(measured.observations, measured.actions, without_rewards, measured.last, unseen, goals)
    return prepared._replace(measured=normalised(thinned(rows), mean, std))


def _statistics(config: DatasetConfig, normalise: bool, origin: Origin | None) -> Statistics | None:
    """The statistics by which to normalise states, or None to leave them unchanged."""
    own: Statistics | None = transitions.state_statistics if normalise else None
    if config.observation_scaler != "none":
        own = partial(scalers.state_statistics, config.observation_scaler)
    return own if origin is None else origin.statistics(own or _neutral)


def _neutral(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Statistics that leave states unchanged."""
    size = observations.shape[1]
    return np.zeros(size, np.float32), np.ones(size, np.float32)


def _no_statistics(raw: Raw) -> tuple[np.ndarray, np.ndarray]:
    """Mean 0 and standard deviation 1 for every component of the state."""
    size = size_of_statistics(shape_of(raw["observations"]))
    return np.zeros(size, np.float32), np.ones(size, np.float32)


def _reward_scale(config: DatasetConfig, raw: Raw, limit: int | None) -> Callable[[Any], Any] | None:
    """The function of the config's reward scaler, or None without one."""
    if not isinstance(config, RewardsConfig):
        return None
    scalers.check_rewards(config)
    if config.reward_scaler == "none":
        return None
    if getattr(config, "normalize_reward", False):
        raise InputError("rewards are scaled by reward_scaler or by normalize_reward: set normalize_reward to false")
    return scalers.reward_scale(config, raw, limit)


def _scaled(raw: Raw, scale: Callable[[Any], Any]) -> Raw:
    return {**raw, "rewards": scale(raw["rewards"].astype(np.float32, copy=False))}


def _share(config: DatasetConfig) -> float | None:
    return config.validation_share if isinstance(config, OfflineConfig) else 0.0


def _steps(config: DatasetConfig, preparation: Preparation) -> Steps:
    """The number of steps in a transition; more than one works only with plain transitions and unchanged rewards."""
    discount = config.discount if isinstance(config, Discounted) else 1.0
    if not isinstance(config, TransitionsConfig) or config.n_steps == 1:
        return Steps(1, discount)
    if preparation.extract is not Extract.TRANSITIONS:
        raise InputError("this algorithm learns from the data's next actions: set n_steps to 1")
    if preparation.rewards != AS_THEY_ARE:
        raise InputError(
            "rewards are summed over n_steps as they are: set normalize_reward to false, or a reward_scaler"
        )
    return Steps(config.n_steps, discount)


def _check_images(config: DatasetConfig, raw: Raw, normalise: bool) -> None:
    scaled = {"observation_scaler to none": config.observation_scaler != "none", "normalize to false": normalise}
    for setting, asked in scaled.items():
        if asked and transitions.shows_images(raw):
            raise InputError(f"images are scaled by their encoder alone: set {setting}")


def _check_room(config: DatasetConfig, rows: int) -> None:
    assert isinstance(config, ImitationConfig | FinetuneConfig), "whoever learns from transitions has room for them"
    if rows > config.buffer_size:
        raise InputError(
            f"the dataset has {rows} transitions; set buffer_size to at least that, not {config.buffer_size}"
        )
