"""D4RL's reference scores, and the environment that belongs to each of its datasets."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shared.data import D4RL_FACTS, nearest
from shared.envs import D4RL_ENVS, is_d4rl_exact
from shared.errors import InputError


class Reference(NamedTuple):
    """What D4RL states about a dataset.

    `min_score` and `max_score` are the undiscounted returns that count as 0 and 100. `env_id` is the environment that
    steps as the one the data came from, None where there is none yet.
    """

    min_score: float
    max_score: float
    max_episode_steps: int
    env_id: str | None


def _env_id(info: dict[str, Any]) -> str | None:
    env_id = f"d4rl/{info['env'].lower()}"
    return env_id if is_d4rl_exact(env_id) else None


def reference(dataset_id: str) -> Reference:
    """Looks up one of D4RL's 136 datasets, for example `hopper-medium-v2`.

    The figures are those of D4RL's own table (`d4rl.infos`).

    Raises:
        InputError: D4RL has no such dataset.
    """
    if dataset_id not in D4RL_FACTS:
        raise InputError(f"unknown D4RL dataset {dataset_id!r}; {nearest(dataset_id, D4RL_FACTS)}")
    info = D4RL_FACTS[dataset_id]
    return Reference(info["ref_min_score"], info["ref_max_score"], info["max_episode_steps"], _env_id(info))


def env_of(dataset_id: str) -> str:
    """The environment in which a policy learned from `dataset_id` is scored, for example `d4rl/hopper-v2`.

    Raises:
        InputError: D4RL has no such dataset, or its environment is not available.
    """
    env_id = reference(dataset_id).env_id
    if env_id is None:
        raise InputError(
            f"the environment of {dataset_id!r} is not available yet (these are: {', '.join(D4RL_ENVS)}); "
            "name a registered environment to evaluate in with --eval_env"
        )
    return env_id


@cache
def _a_dataset_of(env_id: str) -> str:
    """A dataset of an environment: they all have the same reference scores."""
    return next(name for name, info in D4RL_FACTS.items() if _env_id(info) == env_id)


def score(returns: ArrayLike, dataset_id: str) -> np.ndarray:
    """Undiscounted returns, any shape, on the scale of a dataset's reference scores: float64, in D4RL's order.

    Raises:
        InputError: D4RL has no such dataset.
    """
    low, high, *_ = reference(dataset_id)
    return (np.asarray(returns, np.float64) - low) / (high - low) * 100


def normalized_score(returns: ArrayLike, env_id: str) -> np.ndarray | None:
    """D4RL's normalised score, 0 for a random policy's return and 100 for an expert's.

    Args:
        returns: Undiscounted returns, any shape.
        env_id: The environment that they were measured in.

    Returns:
        Scores of the same shape, float64; None if `env_id` does not step as D4RL's environment did, for a return
        measured elsewhere has no D4RL score.
    """
    return score(returns, _a_dataset_of(env_id)) if is_d4rl_exact(env_id) else None
