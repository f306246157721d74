"""Preparing a dataset: from its rows to what an algorithm learns from, under the kinds that the algorithm names."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from shared import names
from shared.data import scalers, sequences, transitions
from shared.data.episodes import Episodes, of_each_transition, of_transitions
from shared.data.held_out import Raw, hold_out
from shared.data.rewards import AS_THEY_ARE, Rewards
from shared.envs.spaces import shape_of, size_of_statistics
from shared.errors import InputError
from shared.runs import own_data
from shared.runs.extraction import Extract, check_images, check_n_steps, check_room, extract
from shared.runs.opening import Opened
from shared.runs.origin import Origin, Statistics
from shared.runs.own_data import NO_PROMPTS, Prompts
from shared.runs.progress import say
from shared.runs.settings import DatasetConfig, FinetuneConfig, OfflineConfig, RewardsConfig
from shared.runs.validation import DEFAULT_SHARE, NO_ENVIRONMENT, HeldOut, thinned


@dataclass(frozen=True)
class Preparation:
    """What an algorithm makes of a dataset.

    Attributes:
        extract: What is taken from the rows.
        rewards: How rewards are changed, or trajectories ranked by them.
        normalise: Whether states are normalised to mean 0 and standard deviation 1.
        finite: Whether the algorithm chooses one of finite actions; else it gives a vector.
    """

    extract: Extract = Extract.TRANSITIONS
    rewards: Rewards = AS_THEY_ARE
    normalise: bool = True
    finite: bool = False


AS_CORL = Preparation()
"""What CORL does if nothing else is said: transitions with their rewards, and normalised states."""


class Prepared(NamedTuple):
    """What does not depend on the seed: the source, what is learnt from it, its statistics, and what that begins with.

    Actions are the dataset's own still; otherwise as in a `Task`. `measured` are the rows that a policy's actions are
    measured on.
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
class SequenceSettings(Protocol):
    """Settings of a sequence model; None stands for what its prompts are by default."""

    @property
    def episode_len(self) -> int:
        """Steps after which an evaluated episode is cut."""

    @property
    def reward_scale(self) -> float | None:
        """Factor on returns-to-go."""

    @property
    def target_returns(self) -> tuple[float, ...] | None:
        """What the model is asked for."""


def prepare(config: DatasetConfig, opened: Opened, preparation: Preparation, origin: Origin | None) -> Prepared:
    """What an algorithm learns from.

    In CORL's order: transitions are extracted, rewards modified or the best trajectories kept, then states are
    normalised. A reward scaler of d3rlpy's goes before all that, so that returns too are those of scaled rewards. An
    observation scaler takes the place of normalisation.

    Raises:
        InputError: The settings do not fit the dataset, or each other.
    """
    if preparation.extract is Extract.TRAJECTORIES:
        return _trajectories(config, opened, origin)
    check_n_steps(config, preparation.extract, preparation.rewards)
    limit = opened.limit
    raw, held_out = _divided(config, opened)
    episodes = None if names.has_published_results(config.env) else of_transitions(raw, limit)
    check_images(config, raw, preparation.normalise)
    unseen = held_out is not opened.read.raw
    if (scale := _reward_scale(config, raw, limit)) is not None:
        raw, held_out = _scaled(raw, scale), _scaled(held_out, scale) if held_out is not None and unseen else held_out
    extracted = extract(config, opened, raw, preparation.extract)
    check_room(config, len(extracted.rewards))
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
    prepared = prepared._replace(measured=_normalised(rows, prepared))
    if not unseen:
        return prepared
    others = extract(config, opened, held_out, preparation.extract)
    if preparation.rewards != AS_THEY_ARE:
        others = _as_modified(others, extracted, dataset)
    return prepared._replace(held_out=None if others is None else _normalised(others, prepared))


def _step_reward(
    config: DatasetConfig, extracted: Any, family: str, episodes: Episodes | None, rewards: Rewards
) -> Callable[[float], float]:
    """From a reward of the environment to what is learnt from, of a run that goes on there."""
    kind = rewards if isinstance(config, FinetuneConfig) else AS_THEY_ARE
    return kind.change(extracted, family, episodes)


def _trajectories(config: DatasetConfig, opened: Opened, origin: Origin | None) -> Prepared:
    """Whole trajectories; as in CORL, states are normalised by all rows, those behind the last trajectory included."""
    assert isinstance(config, SequenceSettings)
    raw, held_out = _divided(config, opened)
    dataset = sequences.split_trajectories(raw, opened.limit)
    longest = int(sequences.trajectory_lengths(dataset).max())
    if longest > config.episode_len + 1:  # those of D4RL's antmaze are a step longer
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
    return prepared._replace(measured=_normalised(rows, prepared))


def _divided(config: DatasetConfig, opened: Opened) -> tuple[Raw, Raw | None]:
    """The rows that are learnt from, and those that a policy is measured on; None where it is not measured."""
    raw, alone = opened.read.raw, config.eval_env == NO_ENVIRONMENT
    share = config.validation_share if isinstance(config, OfflineConfig) else 0.0
    asked = share is not None
    share = DEFAULT_SHARE * alone if share is None else share
    parts = hold_out(raw, opened.limit, share) if share else None
    if parts is not None:
        return parts
    if share:
        reason = "fewer than two episodes of the dataset are complete, so none can be held out"
        if asked:
            raise InputError(f"{reason}: set validation_share to 0")
        say(f"{reason}: actions are measured on the rows that are learnt from")
    return raw, raw if alone else None


def _as_modified(others: Any, before: Any, after: Any) -> Any:
    """Held-out transitions whose rewards are modified as those that are learnt from; None where that is not known.

    All kinds are a factor and a shift, which two transitions tell. Runs from before go on with the same numbers so.
    """
    if type(before) is not type(after) or len(before.rewards) != len(after.rewards):
        return None
    low, high = int(before.rewards.argmin()), int(before.rewards.argmax())
    spread = float(before.rewards[high] - before.rewards[low])
    factor = float(after.rewards[high] - after.rewards[low]) / spread if spread else 1.0
    shift = float(after.rewards[low]) - factor * float(before.rewards[low])
    return others._replace(rewards=(factor * others.rewards + shift).astype(np.float32))


def _normalised(rows: Any, prepared: Prepared) -> Any:
    """Held-out rows whose states are as those that are learnt from; images stay as they are."""
    if rows.observations.ndim > 2:
        return rows
    states = {name: getattr(rows, name) for name in ("observations", "next_observations") if hasattr(rows, name)}
    return rows._replace(
        **{name: transitions.normalise(column, prepared.mean, prepared.std) for name, column in states.items()}
    )


def _statistics(config: DatasetConfig, normalise: bool, origin: Origin | None) -> Statistics | None:
    """What states are normalised by; None: they stay as they are."""
    own: Statistics | None = transitions.state_statistics if normalise else None
    if config.observation_scaler != "none":
        own = partial(scalers.state_statistics, config.observation_scaler)
    return own if origin is None else origin.statistics(own or _neutral)


def _neutral(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Statistics that leave states as they are."""
    size = observations.shape[1]
    return np.zeros(size, np.float32), np.ones(size, np.float32)


def _no_statistics(raw: Raw) -> tuple[np.ndarray, np.ndarray]:
    """Mean 0 and standard deviation 1 for every component of the state."""
    size = size_of_statistics(shape_of(raw["observations"]))
    return np.zeros(size, np.float32), np.ones(size, np.float32)


def _reward_scale(config: DatasetConfig, raw: Raw, limit: int | None) -> Callable[[Any], Any] | None:
    """What the config's reward scaler does; None without one."""
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
