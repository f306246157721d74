"""A task: the dataset as an algorithm sees it, and the evaluator that scores what was learnt from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from shared import data, sources
from shared.configs import check
from shared.data import Batch
from shared.errors import InputError
from shared.evaluation import Evaluator
from shared.scores import env_of


@dataclass(frozen=True)
class Task:
    """What a run learns from and what scores it.

    Attributes:
        dataset: The transitions, rewards modified and states normalised as the config asks; float32 NumPy arrays.
        evaluator: Runs episodes; it normalises states with the same `mean` and `std`.
        state_dim: S.
        action_dim: A.
        max_action: Bound of every action component.
        mean: (S,), 0 without normalisation.
        std: (S,), 1 without normalisation.
        attributes: What the dataset's file says about itself, such as `expert_return_mean`.
        fingerprint: Name, number of transitions and SHA-256 of the dataset's file.
    """

    dataset: Batch
    evaluator: Evaluator
    state_dim: int
    action_dim: int
    max_action: float
    mean: np.ndarray
    std: np.ndarray
    attributes: dict[str, Any]
    fingerprint: dict[str, Any]


def load_task(
    config: Any, modify_reward: Callable[[Batch, str], Batch] = data.modify_rewards, source: Any = None
) -> Task:
    """Loads the dataset that the config names and makes the environment that scores it.

    In CORL's order: transitions are extracted, rewards modified, then states normalised.

    Args:
        config: Has `env`, `eval_env`, `buffer_size`, `normalize`, `normalize_reward`, `n_episodes` and `seed`.
        modify_reward: From the transitions and the name that tells the family (the dataset's, or the environment's
            for a file of one's own) to transitions with other rewards; called if `config.normalize_reward`.
        source: Anything with D4RL's `get_dataset()`, read in place of the dataset that `config.env` then only names.

    Raises:
        InputError: A setting, the dataset or the environment cannot be used, or the two do not fit.
    """
    check(config)
    read = sources.read(config.env) if source is None else sources.from_object(source)
    env_id = config.eval_env or _own_env(config.env, read.attributes)
    dataset = data.extract_transitions(read.raw, read.max_episode_steps or _max_episode_steps(env_id))
    if len(dataset.rewards) > config.buffer_size:
        rows = len(dataset.rewards)
        raise InputError(
            f"the dataset has {rows} transitions; set buffer_size to at least that, not {config.buffer_size}"
        )
    if config.normalize_reward:
        dataset = modify_reward(dataset, env_id if data.is_file_name(config.env) else config.env)
    state_dim, action_dim = dataset.observations.shape[1], dataset.actions.shape[1]
    mean, std = np.zeros(state_dim, np.float32), np.ones(state_dim, np.float32)
    if config.normalize:
        mean, std = data.state_statistics(dataset.observations)
    evaluator = Evaluator(env_id, config.n_episodes, config.seed, mean, std)
    if (evaluator.state_dim, evaluator.action_dim) != (state_dim, action_dim):
        evaluator.close()
        raise InputError(
            f"dataset {config.env!r} has states of size {state_dim} and actions of size {action_dim}, environment "
            f"{env_id!r} {evaluator.state_dim} and {evaluator.action_dim}: set eval_env to the one it was recorded in"
        )
    if config.normalize:
        dataset = dataset._replace(
            observations=data.normalise(dataset.observations, mean, std),
            next_observations=data.normalise(dataset.next_observations, mean, std),
        )
    return Task(
        dataset=dataset,
        evaluator=evaluator,
        state_dim=state_dim,
        action_dim=action_dim,
        max_action=evaluator.max_action,
        mean=mean,
        std=std,
        attributes=read.attributes,
        fingerprint={"name": config.env, "transitions": len(dataset.rewards), "sha256": read.sha256},
    )


def _own_env(name: str, attributes: dict[str, Any]) -> str:
    """The environment that a dataset's file names, else the one that D4RL recorded it in."""
    if "env_id" in attributes:
        return str(attributes["env_id"])
    if name not in data.D4RL_FACTS:
        hint = ", or write the file's attribute 'env_id'" if data.is_file_name(name) else ""
        raise InputError(f"{name} names no environment: set eval_env{hint}")
    return env_of(name)


def _max_episode_steps(env_id: str) -> int | None:
    """The time limit of a registered environment."""
    spec = gymnasium.registry.get(env_id)
    return None if spec is None else spec.max_episode_steps
