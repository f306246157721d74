"""The task of an algorithm that collects its own data."""

import math
from dataclasses import fields
from typing import Any

import numpy as np

from shared.data.transitions import Batch
from shared.envs.evaluation import Evaluator
from shared.envs.spaces import Shape, axes, kept_as, size_of_statistics
from shared.errors import InputError
from shared.runs import memory
from shared.runs.actions import action_units
from shared.runs.encoders import check_readable
from shared.runs.episodes import cut_after
from shared.runs.evaluators import note_cut
from shared.runs.opening import check_actions
from shared.runs.origin import origin_of
from shared.runs.progress import warn
from shared.runs.settings import RunConfig, TransitionsConfig
from shared.runs.task import Task


def load_online_task(config: Any, finite: bool = False) -> Task:
    """Loads the task of an algorithm that collects its own data, with unnormalised states.

    Args:
        config: Has `env`, which names the environment, `max_timesteps`, `n_episodes` and `seed`. Settings that only
            apply to datasets must have their defaults.
        finite: Whether the algorithm's actions are finite; otherwise they are vectors.

    Raises:
        InputError: A setting or the environment cannot be used.
    """
    memory.check_settings(config)
    _check_no_dataset(config)
    cut = cut_after(config.max_episode_steps, config.env)
    evaluator = Evaluator(
        config.env, config.n_episodes, config.seed, max_steps=cut, frame_stack=config.reader.frame_stack
    )
    note_cut(evaluator, cut)
    _tell_of_no_updates(config)
    rows, state_dim, action_dim = config.max_timesteps, evaluator.state_dim, evaluator.action_dim
    try:
        check_actions(f"environment {config.env!r}", evaluator.actions.finite, finite)
        check_readable(config.reader, state_dim, f"observations of environment {config.env!r}")
        memory.check_size("max_timesteps", rows, rows * 2 * _bytes(state_dim) + rows * 4 * (action_dim + 2))
        evaluator.units = units = action_units(config, evaluator.actions, origin=origin_of(config))
    except InputError:
        evaluator.close()
        raise
    seen = (rows, *axes(state_dim)), kept_as(state_dim)
    room = Batch(
        observations=np.zeros(*seen),
        actions=np.zeros((rows, *evaluator.actions.shape), evaluator.actions.dtype),
        rewards=np.zeros(rows, np.float32),
        next_observations=np.zeros(*seen),
        terminals=np.zeros(rows, np.float32),
    )
    return Task(
        dataset=room,
        evaluator=evaluator,
        shape=state_dim,
        action_dim=action_dim,
        max_action=units.bound,
        mean=np.zeros(size_of_statistics(state_dim), np.float32),
        std=np.ones(size_of_statistics(state_dim), np.float32),
        action_mean=np.resize(units.mean, action_dim),
        action_std=np.resize(units.std, action_dim),
        attributes={},
        fingerprint={"name": config.env},
        box=units.box,
    )


def _tell_of_no_updates(config: Any) -> None:
    """Warns if a run ends before its learning begins."""
    for name in ("random_steps", "learning_starts"):
        if getattr(config, name, 0) >= config.max_timesteps:
            first = f"learning begins after {name} ({getattr(config, name):,})"
            warn(f"a run of {config.max_timesteps:,} steps learns nothing: {first}; lower it or raise max_timesteps")


def _bytes(state_dim: Shape) -> int:
    """The size of an observation in bytes."""
    return math.prod(axes(state_dim)) * np.dtype(kept_as(state_dim)).itemsize


def _check_no_dataset(config: RunConfig) -> None:
    """Refuses settings that only apply to datasets."""
    for field in fields(TransitionsConfig):
        of_datasets = not hasattr(RunConfig, field.name) and field.name != "max_timesteps"
        if of_datasets and getattr(config, field.name, field.default) != field.default:
            raise InputError(f"{field.name} is for datasets, and env is an environment, {config.env!r}: leave it out")
