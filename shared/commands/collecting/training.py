"""The training for a collection: runs of an online twin, each of which continues from the previous one's end."""

import dataclasses
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from shared.errors import InputError
from shared.runs.configs import dump
from shared.runs.resuming import defaults_of_later
from shared.runs.vocabulary import in_house

_CHECKPOINT = re.compile(r"checkpoint_(\d+)\.(pt|msgpack)")
# Settings that may differ between a training and one that continues it, or only needs its beginning
_FREE = ("max_timesteps", "load_model", "resume", "runs_path", "checkpoints_path")


def train(twin: ModuleType, algorithm: str, config: Any, folder: Path) -> dict[int, Path]:
    """Trains in the folder, from its last checkpoint on, unless it has already come far enough.

    Args:
        twin: An algorithm's module with `TrainConfig` and `train`, which saves a checkpoint at each evaluation.
        algorithm: The name of the algorithm.
        config: The config of the training.
        folder: The folder that contains `checkpoints/` and `runs/`.

    Returns:
        The checkpoints up to `max_timesteps`, by their environment steps.

    Raises:
        InputError: The folder contains a training with other settings.
    """
    _refuse_others(config, algorithm, folder)
    found = checkpoints(folder)
    if max(found, default=0) < config.max_timesteps:
        places = {"checkpoints_path": str(folder / "checkpoints"), "runs_path": str(folder / "runs")}
        last = str(found[max(found)]) if found else ""
        twin.train(dataclasses.replace(config, load_model=last, **places))
    return {step: path for step, path in checkpoints(folder).items() if step <= config.max_timesteps}


def checkpoints(folder: Path) -> dict[int, Path]:
    """All checkpoints of a folder's runs by their environment steps, in ascending order."""
    matches = ((_CHECKPOINT.fullmatch(path.name), path) for path in (folder / "checkpoints").glob("*/checkpoint_*"))
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def _refuse_others(config: Any, algorithm: str, folder: Path) -> None:
    wanted = _settings(dump(config))
    for path in (folder / "runs").glob("*/config.yaml"):
        found = defaults_of_later(config) | in_house(_settings(path.read_text()), list(vars(config)), algorithm)
        differing = [f"{name} {found.get(name)}" for name in wanted if found.get(name) != wanted[name]]
        if differing:
            raise InputError(f"{folder} holds a training with {', '.join(differing)}: name another --work_dir")


def _settings(text: str) -> dict[str, Any]:
    return {name: value for name, value in yaml.safe_load(text).items() if name not in _FREE}
