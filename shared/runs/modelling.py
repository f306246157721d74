"""The task of a dynamics model: a dataset to learn from, and its episodes, which the model must follow."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shared.data import sources
from shared.data.dynamics import extract_known, held_out_rows
from shared.data.transitions import Batch
from shared.envs.registry import time_limit
from shared.envs.terminations import termination
from shared.errors import InputError
from shared.runs import memory, seeds
from shared.runs.checkpoints import Checkpoints
from shared.runs.configs import from_settings
from shared.runs.fields import check
from shared.runs.rollouts import RolloutEvaluator
from shared.runs.task import Task, own_env

Config = TypeVar("Config")


def load_modelled(config: Any) -> Task:
    """Loads the dataset that the config names for a dynamics model; states and rewards are as they are.

    Args:
        config: Has what a `RolloutEvaluator` takes, `env`, and `hidden_dims` with as many weight decays and
            one more.

    Raises:
        InputError: A setting or the dataset cannot be used, or they do not fit.
    """
    check(config)
    memory.check_settings(config)
    if len(config.dynamics_weight_decay) != len(config.hidden_dims) + 1:
        raise InputError(
            f"dynamics_weight_decay has {len(config.dynamics_weight_decay)} numbers: give one for each of "
            f"hidden_dims and one for the last layer, {len(config.hidden_dims) + 1}"
        )
    if config.n_elites > config.n_ensemble:
        raise InputError(f"n_elites {config.n_elites} are more than all members: set it to {config.n_ensemble} at most")
    env_id, sha256, dataset = seeds.once(load_modelled, lambda: _read(config))
    held_out = held_out_rows(config.holdout_ratio, len(dataset.rewards))
    if held_out < 1 or held_out >= len(dataset.rewards):
        raise InputError(
            f"holdout_ratio {config.holdout_ratio} of {len(dataset.rewards)} transitions holds out {held_out}: set it "
            "so that rows are held out and rows are left"
        )
    state_dim, action_dim = dataset.observations.shape[1], dataset.actions.shape[1]
    return Task(
        dataset=dataset,
        evaluator=RolloutEvaluator(config, dataset, {"env": env_id, "dataset": config.env}),
        shape=state_dim,
        action_dim=action_dim,
        max_action=1.0,
        mean=np.zeros(state_dim, np.float32),
        std=np.ones(state_dim, np.float32),
        action_mean=np.zeros(action_dim, np.float32),
        action_std=np.ones(action_dim, np.float32),
        attributes={},
        fingerprint={"name": config.env, "transitions": len(dataset.rewards), "sha256": sha256},
    )


def _read(config: Any) -> tuple[str, str, Batch]:
    """The environment of the dataset that a config names, its file's digest, and its transitions."""
    read = sources.read(config.env)
    if read.raw["actions"].ndim == 1:
        raise InputError(f"dataset {config.env!r} has finite actions, and this model's are vectors: set env to another")
    env_id = own_env(config.env, read.attributes)
    termination(env_id)  # or one line on why there is none
    limit = read.max_episode_steps or time_limit(env_id)
    following = sources.next_observations(config.env, read)
    return env_id, read.sha256, extract_known(read.raw, env_id, limit, following)


def check_model(path: Path, suffix: str) -> Path:
    """The last checkpoint of a run's folder, or the file itself.

    Args:
        path: The folder or the file.
        suffix: Of the framework's checkpoints.

    Raises:
        InputError: There is none.
    """
    if path.is_file():
        return path
    checkpoints = Checkpoints(path / "checkpoints", suffix)
    for file in [path / f"checkpoint{suffix}", *(checkpoints.path(step) for step in reversed(checkpoints.steps()))]:
        if file.is_file():
            return file
    raise InputError(f"there is no checkpoint *{suffix} at {path}: name the folder of a run of model_based/dynamics")


def settings_of(
    content: Mapping[str, Any], config_class: type[Config], file: Path, device: str
) -> tuple[Config, tuple[int, int, float], str]:
    """What a model's checkpoint says about its run: settings on a device, S, A and 1, and the environment.

    Raises:
        InputError: It is of another algorithm, or of a run that wrote no such facts.
    """
    if (found := content.get("algorithm")) != "model_based/dynamics":
        raise InputError(f"checkpoint {file} is of {found}, not of model_based/dynamics: name a run of that")
    try:
        settings = {**content["settings"], "device": device}
        environment = content["environment"]
        sizes = environment["state_dim"], environment["action_dim"], environment["max_action"]
    except (KeyError, TypeError):
        raise InputError(f"checkpoint {file} does not say of which run it is: name a run's folder") from None
    config = from_settings(config_class, "model_based/dynamics", settings, f"settings in {file}: ")
    return config, sizes, environment["id"]
