"""The task of a dynamics model: a dataset to learn from, and recorded episodes that the model must follow."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shared.data import sources
from shared.data.dynamics import extract_known, held_out_rows
from shared.data.transitions import Batch
from shared.envs.boxes import ActionUnits
from shared.envs.families import check_termination, termination
from shared.envs.registry import make_env, time_limit
from shared.envs.spaces import spaces_of
from shared.errors import InputError
from shared.names import has_published_results
from shared.runs import memory, own_data, seeds
from shared.runs.actions import action_units
from shared.runs.checkpoints import Checkpoints
from shared.runs.configs import from_settings
from shared.runs.opening import own_env
from shared.runs.origin import origin_of
from shared.runs.rollouts import RolloutEvaluator
from shared.runs.task import Task

Config = TypeVar("Config")

NEEDED = "a model must know when its episodes end, so take data that names one"
"""Advice for a dataset that does not name its environment."""


def load_model_task(config: Any) -> Task:
    """Loads a dynamics model's task from the dataset that the config names, with unchanged states and rewards.

    Args:
        config: Has the settings of a `RolloutEvaluator`, `env`, `termination`, `hidden_dims`, and one more weight decay
            than hidden layers.

    Raises:
        InputError: A setting or the dataset cannot be used, or they do not match.
    """
    memory.check_settings(config)
    if len(config.dynamics_weight_decay) != len(config.hidden_dims) + 1:
        raise InputError(
            f"dynamics_weight_decay has {len(config.dynamics_weight_decay)} numbers: give one for each of "
            f"hidden_dims and one for the last layer, {len(config.hidden_dims) + 1}"
        )
    if config.n_elites > config.n_ensemble:
        raise InputError(f"n_elites {config.n_elites} are more than all members: set it to {config.n_ensemble} at most")
    env_id, sha256, dataset = seeds.once(load_model_task, lambda: _read(config))
    held_out = held_out_rows(config.holdout_ratio, len(dataset.rewards))
    if held_out < 1 or held_out >= len(dataset.rewards):
        raise InputError(
            f"holdout_ratio {config.holdout_ratio} of {len(dataset.rewards)} transitions holds out {held_out}: set it "
            "so that rows are held out and rows are left"
        )
    state_dim, action_dim = dataset.observations.shape[1], dataset.actions.shape[1]
    units, dataset = seeds.once(_in_units, lambda: _in_units(config, env_id, dataset))
    return Task(
        dataset=dataset,
        evaluator=RolloutEvaluator(config, dataset, {"env": env_id, "dataset": config.env}),
        shape=state_dim,
        action_dim=action_dim,
        max_action=units.bound,
        mean=np.zeros(state_dim, np.float32),
        std=np.ones(state_dim, np.float32),
        action_mean=np.resize(units.mean, action_dim),
        action_std=np.resize(units.std, action_dim),
        attributes={},
        fingerprint={"name": config.env, "transitions": len(dataset.rewards), "sha256": sha256},
        box=units.box,
    )


def _in_units(config: Any, env_id: str, dataset: Batch) -> tuple[ActionUnits, Batch]:
    """Returns the units of actions, and the transitions with their actions in these units."""
    env = make_env(env_id)
    _, there = spaces_of(env_id, env)
    env.close()
    units = action_units(config, there, dataset.actions, dataset.actions, origin_of(config))
    return units, dataset._replace(actions=units.learnt(dataset.actions))


def _read(config: Any) -> tuple[str, str, Batch]:
    """Returns the environment of the config's dataset, the digest of its file, and its transitions."""
    read = sources.read(config.env)
    if read.raw["actions"].ndim == 1:
        raise InputError(f"dataset {config.env!r} has finite actions, and this model's are vectors: set env to another")
    env_id = own_env(config.env, read.attributes, NEEDED)
    # Raises an error that says why there is no termination
    check_termination(termination(env_id, config.termination), read.raw["observations"])
    limit = read.max_episode_steps or time_limit(env_id)
    read = own_data.looked_through(config.env, read, limit, config.limits_as_terminals)
    own = not has_published_results(config.env)
    following = sources.next_observations(config.env, read)
    return env_id, read.sha256, extract_known(read.raw, env_id, limit, following, own)


def check_model(path: Path, suffix: str) -> Path:
    """Returns the last checkpoint in a run's folder, or the path itself if it is a file.

    Args:
        path: A run's folder or a checkpoint.
        suffix: The suffix of the framework's checkpoints.

    Raises:
        InputError: There is no checkpoint.
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
    """Reads the facts about a model's run from its checkpoint: its config, (S, A, 1), and the environment.

    Raises:
        InputError: The checkpoint is from another algorithm, or does not state these facts.
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
