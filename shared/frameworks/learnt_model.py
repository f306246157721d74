"""The task of a model-based algorithm, in either framework: a dataset, and a learnt model of the environment."""

import dataclasses
import hashlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

from shared.data import sources
from shared.data.dynamics import ModelSizes
from shared.envs.families import check_termination, termination
from shared.errors import InputError, RunError
from shared.frameworks.twins import load_twin
from shared.runs.configs import from_settings
from shared.runs.extraction import Extract
from shared.runs.fields import check
from shared.runs.memory import check_size
from shared.runs.modelling import NEEDED, check_model, settings_of
from shared.runs.opening import own_env
from shared.runs.origin import Origin
from shared.runs.preparation import Preparation
from shared.runs.resuming import AUTO, RunStatus, run_status
from shared.runs.task import Task, load_task

DYNAMICS = "model_based/dynamics"
_SUFFIXES = {"torch": ".pt", "jax": ".msgpack"}
# The largest state or reward of a roll-out that may still come from an environment
LARGEST = 1e6


class LearntModel(NamedTuple):
    """A dynamics model from the twin of model_based/dynamics, and its sizes."""

    model: Any
    sizes: ModelSizes


def load_model_based_task(config: Any, framework: str) -> tuple[Task, LearntModel]:
    """Loads the dataset that the config names, unchanged, and the model; trains a model if the config names none.

    That training is a separate run below `runs_path`, with the settings in the dataset's row and the same seed. If it
    is already finished, its model is used; if it was stopped, it is resumed.

    Args:
        config: An `ImitationConfig` with `dynamics`, `rollout_batch_size`, `rollout_length` and `model_retain_epochs`.
        framework: `torch` or `jax`.

    Returns:
        The task, whose fingerprint includes the model's digest, and the model.

    Raises:
        InputError: A setting, the dataset, the environment or the model cannot be used, or they do not match.
    """
    check(config)
    for name in ("observation_scaler", "action_scaler"):
        if getattr(config, name) != "none":
            raise InputError(f"the model learns from states and actions as they are: set {name} to none")
    read = sources.read(config.env)
    if read.raw["actions"].ndim == 1:
        raise InputError(f"dataset {config.env!r} has finite actions, and a model's are vectors: set env to another")
    env_id = own_env(config.env, read.attributes, NEEDED)
    if config.termination or not config.dynamics:  # otherwise the model's own run has checked it
        # Raises an error that says why there is no termination
        check_termination(termination(env_id, config.termination), read.raw["observations"])
    _check_room(config, *(read.raw[name].shape[1] for name in ("observations", "actions")))
    path = check_model(Path(config.dynamics) if config.dynamics else _trained(config, framework), _SUFFIXES[framework])
    content = importlib.import_module(f"shared.frameworks.{framework}_checkpoints").read_checkpoint(str(path))
    twin = load_twin(framework, DYNAMICS)
    settings, (state_dim, action_dim, _), learnt_in = settings_of(content, twin.TrainConfig, path, config.device)
    sizes = ModelSizes(state_dim, action_dim, settings.n_ensemble, settings.n_elites)
    ours = read.raw["observations"].shape[1], read.raw["actions"].shape[1]
    if learnt_in != env_id or (state_dim, action_dim) != ours:
        raise InputError(
            f"the model of {path} has states of size {state_dim} and actions of size {action_dim} of {learnt_in}, "
            f"dataset {config.env!r} {ours[0]} and {ours[1]} of {env_id}: set dynamics to another, or leave it out"
        )

    model = twin.load_dynamics(path, config.device, config.termination)
    task = load_task(config, Preparation(Extract.KNOWN, normalise=False), Origin(path, content))
    digest = {"dynamics": hashlib.sha256(path.read_bytes()).hexdigest()}
    return dataclasses.replace(task, fingerprint=task.fingerprint | digest), LearntModel(model, sizes)


def _trained(config: Any, framework: str) -> Path:
    """The folder of the run that has learnt the model for this config; trains it if necessary."""
    twin = load_twin(framework, DYNAMICS)
    of_data = ("env", "limits_as_terminals", "termination")
    names = (*of_data, "seed", "device", "runs_path", "wandb_mode", "tensorboard", "project")
    shared = {name: getattr(config, name) for name in names}
    settings = from_settings(twin.TrainConfig, DYNAMICS, shared, "")
    how_far, folder = run_status(settings, DYNAMICS, framework)
    if how_far is RunStatus.FINISHED and folder is not None:
        return folder
    return twin.train(dataclasses.replace(settings, resume=AUTO)).folder


def _check_room(config: Any, state_dim: int, action_dim: int) -> None:
    """Checks that this machine's memory can hold the model's transitions."""
    rows = config.rollout_batch_size * config.rollout_length * config.model_retain_epochs
    needed = 4 * rows * (2 * state_dim + action_dim + 2)
    check_size("rollout_batch_size", config.rollout_batch_size, needed, config.device)


def pieces(intervals: Iterable[tuple[int, int]], every: int) -> Iterator[tuple[int, int]]:
    """Splits intervals, each (updates before, updates at the end), at the multiples of `every`."""
    for start, end in intervals:
        while start < end:
            after = min(end, (start // every + 1) * every)
            yield start, after
            start = after


def check_shares(real_ratio: float, real: int, pushed_down: int) -> None:
    """Checks that a batch contains dataset rows, and states in which the conservative term lowers values.

    Args:
        real_ratio: The dataset's share of a batch.
        real: The number of dataset rows in a batch.
        pushed_down: The number of states in which values are lowered.

    Raises:
        InputError: One of these numbers is 0.
    """
    if not real:
        raise InputError(f"real_ratio {real_ratio:g} leaves a batch no row of the dataset: set it to more")
    if not pushed_down:
        raise InputError(
            f"real_ratio {real_ratio:g} leaves a batch no row of the model: set it to less, or rho_s to mix"
        )


def check_roll_outs(step: int, metrics: Mapping[str, SupportsFloat]) -> None:
    """Checks that the model's roll-outs up to this update stay in the range of an environment's.

    Raises:
        RunError: They do not; evaluating a policy that learnt from them would be pointless.
    """
    largest = float(metrics.get("rollout_largest", 0.0))
    if not largest <= LARGEST:
        raise RunError(
            f"the model's roll-outs reach {largest:.3g} before update {step}: set rollout_length to less, or dynamics "
            "to a run that has learnt for longer"
        )
