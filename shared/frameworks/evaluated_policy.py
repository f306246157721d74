"""Off-policy evaluation's training data, in either framework: a dataset and the actions of a saved run's policy."""

import dataclasses
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shared.data import sources
from shared.data.measures import find_episodes
from shared.data.transitions import SarsaBatch, extract_transitions, normalise
from shared.envs.registry import time_limit
from shared.errors import InputError
from shared.runs import own_data, seeds
from shared.runs.fields import check
from shared.runs.opening import own_env
from shared.runs.task import Task
from shared.runs.validation import NO_ENVIRONMENT
from shared.runs.valuation import DatasetEvaluator


def load_evaluation_task(config: Any) -> Task:
    """Loads the dataset that the config names, with the saved policy's actions in each state and in each next state.

    The policy is fixed, so its actions are computed once, by the PyTorch twin, even if the JAX twin trained it. States
    and actions are in the policy's units, as its checkpoint scales them. Rewards are the dataset's own, so that the
    values of different policies can be compared.

    Args:
        config: Has `policy`, `env`, `discount` and `return_threshold`.

    Returns:
        A task whose dataset is a `SarsaBatch` with the policy's `next_actions`, and whose evaluator measures values.

    Raises:
        InputError: A setting, the run or the dataset cannot be used, or run and dataset do not match.
    """
    check(config)
    return seeds.once(load_evaluation_task, partial(_load, config))


def _load(config: Any) -> Task:
    # It imports both frameworks, which the twins need not load before.
    from shared.frameworks.saved_run import SavedRun, find

    source = SavedRun.open(find(Path(config.policy)))
    state_dim, action_dim, max_action = source.sizes
    read = sources.read(config.env)
    recorded_in = read.attributes.get("env_id", "") if source.env_id == NO_ENVIRONMENT else source.env_id
    limit = read.max_episode_steps or time_limit(str(recorded_in))
    read = own_data.looked_through(config.env, read, limit, config.limits_as_terminals)
    _check_vectors("env", f"dataset {config.env!r}", read.raw["actions"])
    raw, episodes = extract_transitions(read.raw, limit), find_episodes(read.raw, limit)
    sizes = raw.observations.shape[1], raw.actions.shape[1]
    if sizes != (state_dim, action_dim):
        raise InputError(
            f"dataset {config.env!r} has states of size {sizes[0]} and actions of size {sizes[1]}, the policy of "
            f"{source.path} {state_dim} and {action_dim}: set env to a dataset of its kind"
        )
    (mean, std), (action_mean, action_std) = source.statistics(), source.action_statistics()
    transitions = raw._replace(
        observations=normalise(raw.observations, mean, std),
        actions=(raw.actions - action_mean) / action_std,
        next_observations=normalise(raw.next_observations, mean, std),
    )
    actions, next_actions = source.actions(transitions.observations, transitions.next_observations)
    _check_vectors("policy", f"the policy of {source.path}", actions)
    dataset = SarsaBatch(*transitions, next_actions.astype(np.float32))
    threshold = float(np.median(episodes.returns)) if config.return_threshold is None else config.return_threshold
    digest = hashlib.sha256(source.path.read_bytes()).hexdigest()
    policy = {"algorithm": source.algorithm, "path": str(source.path), "sha256": digest}
    fingerprint = {"env": source.env_id, "dataset": config.env, "policy": policy}
    return Task(
        dataset=dataset,
        evaluator=DatasetEvaluator(dataset, actions, episodes, threshold, config.discount, action_std, fingerprint),
        shape=state_dim,
        action_dim=action_dim,
        max_action=max_action,
        mean=mean,
        std=std,
        action_mean=action_mean,
        action_std=action_std,
        attributes={},
        fingerprint={"name": config.env, "transitions": len(actions), "sha256": read.sha256, "policy": digest},
        box=source.box,
    )


def _check_vectors(setting: str, what: str, actions: np.ndarray) -> None:
    if actions.ndim == 1:
        raise InputError(f"{what} has finite actions, and only vectors can be judged: set {setting} to another")


def with_policy(config: Any) -> Any:
    """The config with `policy` set to the latest run below `runs_path` that acts in the dataset's environment.

    A run that learnt from this dataset without an environment also counts. A config that names a policy stays as it is,
    so that a resumed run evaluates the same policy.

    Raises:
        InputError: The config names no policy, and there is no such run.
    """
    if config.policy:
        return config
    results = sorted(Path(config.runs_path).glob("*/result.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    found = next((path.parent for path in results if _learnt_alone_from(path, config.env)), None)
    try:
        env_id = own_env(config.env, sources.read(config.env).attributes, "take another dataset")
    except InputError as error:
        if found is None:
            raise InputError(f"{error}; or set policy to a run") from None
    else:
        kinds = (path.parent for path in results if _acts_in(path, env_id) or path.parent == found)
        found = next(kinds, None)
        if found is None:
            raise InputError(
                f"no finished run below {config.runs_path} acts in {env_id}: train one, or set policy to a run"
            )
    return dataclasses.replace(config, policy=str(found))


def _evaluation(result: Path) -> dict[str, Any]:
    """The evaluation facts in a run's result; empty if the file cannot be used, or if the run evaluated a policy."""
    try:
        evaluation = json.loads(result.read_text())["evaluation"]
        return {} if "policy" in evaluation else {"env": evaluation["env"], "dataset": evaluation.get("dataset")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _acts_in(result: Path, env_id: str) -> bool:
    """Whether a run learnt to act in this environment, regardless of the module that the environment's id names."""
    theirs = _evaluation(result).get("env")
    return theirs is not None and str(theirs).rpartition(":")[2] == env_id.rpartition(":")[2]


def _learnt_alone_from(result: Path, dataset: str) -> bool:
    """Whether a run learnt from this dataset, and no environment scored it."""
    return _evaluation(result) == {"env": NO_ENVIRONMENT, "dataset": dataset}
