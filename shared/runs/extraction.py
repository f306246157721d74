"""Extracting what an algorithm learns from out of a dataset's rows, by kind."""

from enum import Enum, auto
from typing import Any, Protocol, runtime_checkable

from shared import names
from shared.data import sources
from shared.data.dynamics import extract_known
from shared.data.held_out import Raw
from shared.data.nsteps import extract_n_steps
from shared.data.returns import extract_ended, extract_episodes, extract_returns
from shared.data.rewards import AS_THEY_ARE, Rewards
from shared.data.transitions import extract_sarsa, extract_transitions, shows_images
from shared.errors import InputError
from shared.runs.opening import Opened, own_env
from shared.runs.settings import DatasetConfig, FinetuneConfig, ImitationConfig, TransitionsConfig


class Extract(Enum):
    """What is taken from a dataset's rows."""

    TRANSITIONS = auto()  # `Batch`, over `n_steps` steps where the config has them
    SARSA = auto()  # with the data's next actions
    RETURNS = auto()  # with next actions and discounted returns
    EPISODES = auto()  # with where the file says that episodes end
    ENDED = auto()  # with where trajectories end by Cal-QL's rule
    KNOWN = auto()  # those whose next state is known, for a model of the environment
    TRAJECTORIES = auto()  # whole ones, for sequence models


@runtime_checkable
class Discounted(Protocol):
    """Settings of an algorithm that discounts rewards."""

    @property
    def discount(self) -> float:
        """Of a step."""


def extract(config: DatasetConfig, opened: Opened, raw: Raw, kind: Extract) -> Any:
    """What is taken from the rows of a dataset, or of some of its episodes: a row for each transition.

    Raises:
        InputError: There is nothing to take, or nothing says where episodes end.
    """
    limit = opened.limit
    match kind:
        case Extract.SARSA:
            return extract_sarsa(raw, limit)
        case Extract.RETURNS:
            return extract_returns(raw, limit, _discount(config))
        case Extract.ENDED if names.has_published_results(config.env):
            return extract_ended(raw, limit)
        case Extract.ENDED | Extract.EPISODES:  # Cal-QL's rule looks for what a file says
            return extract_episodes(raw, limit)
        case Extract.KNOWN:
            following = sources.next_observations(config.env, opened.read)
            if following is not None and "rows" in raw:  # others are held out
                following = following[raw["rows"]]
            return extract_known(raw, own_env(config.env, opened.read.attributes), limit, following)
    if (steps := _n_steps(config)) > 1:
        return extract_n_steps(raw, limit, n_steps=steps, discount=_discount(config), frame_stack=opened.frame_stack)
    return extract_transitions(raw, limit, frame_stack=opened.frame_stack)


def check_room(config: DatasetConfig, rows: int) -> None:
    """Whether so many transitions are as many as the run accepts.

    Raises:
        InputError: They are more than `buffer_size`.
    """
    assert isinstance(config, ImitationConfig | FinetuneConfig), "whoever learns from transitions has room for them"
    if rows > config.buffer_size:
        raise InputError(
            f"the dataset has {rows} transitions; set buffer_size to at least that, not {config.buffer_size}"
        )


def check_n_steps(config: DatasetConfig, kind: Extract, rewards: Rewards) -> None:
    """Whether the transitions may be over several steps, if they are.

    Raises:
        InputError: The algorithm needs more than rewards and states, or modifies rewards.
    """
    if _n_steps(config) == 1:
        return
    if kind is not Extract.TRANSITIONS:
        raise InputError("this algorithm learns from the data's next actions: set n_steps to 1")
    if rewards != AS_THEY_ARE:
        raise InputError(
            "rewards are summed over n_steps as they are: set normalize_reward to false, or a reward_scaler"
        )


def check_images(config: DatasetConfig, raw: Raw, normalise: bool) -> None:
    """Whether observations stay as they are, if they are images.

    Raises:
        InputError: They are scaled or normalised.
    """
    scaled = {"observation_scaler to none": config.observation_scaler != "none", "normalize to false": normalise}
    for setting, asked in scaled.items():
        if asked and shows_images(raw):
            raise InputError(f"images are scaled by their encoder alone: set {setting}")


def _n_steps(config: DatasetConfig) -> int:
    return config.n_steps if isinstance(config, TransitionsConfig) else 1


def _discount(config: DatasetConfig) -> float:
    assert isinstance(config, Discounted), "whoever adds up rewards discounts them"
    return config.discount
