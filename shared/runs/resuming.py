"""Finding the run that `--resume` names."""

import contextlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from shared.errors import InputError
from shared.runs.configs import dump
from shared.runs.metrics import MetricsFile

AUTO = "auto"
# What decides nothing that a run computes, or only where it lies
_FREE = ("resume", "device", "wandb_mode", "runs_path")


class Unfinished(NamedTuple):
    """A run that can go on; its metrics file is open, and no other process's until it is closed."""

    folder: Path
    metrics: MetricsFile


def find(config: Any, name: str, framework: str) -> Unfinished | None:
    """The run that `config.resume` means; None where a new one shall begin.

    Args:
        config: Has `resume`: empty, a run's folder, or `auto` for the one begun last, of all under `runs_path` that
            have the same settings, are not finished and are no other process's.
        name: What such a run's folder is called, up to its framework.
        framework: `torch` or `jax`.

    Raises:
        InputError: The folder named is no run of this twin, is finished or still goes on, or has other settings.
    """
    if config.resume == AUTO:
        return _latest(config, re.compile(rf"{re.escape(name)}-{framework}-[0-9a-f]{{8}}"))
    return _named(config, Path(config.resume), framework) if config.resume else None


def _latest(config: Any, pattern: re.Pattern) -> Unfinished | None:
    paths = [path for path in Path(config.runs_path).glob("*/config.yaml") if pattern.fullmatch(path.parent.name)]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        folder = path.parent
        if not _is_finished(folder) and _differing(config, folder) == []:
            with contextlib.suppress(BlockingIOError):
                return Unfinished(folder, MetricsFile(folder / "metrics.jsonl"))
    return None


def _named(config: Any, folder: Path, framework: str) -> Unfinished:
    differing = _differing(config, folder)
    if differing is None:
        raise InputError(f"{folder} is no run's folder, or its config.yaml is damaged: name another, or auto")
    if not re.search(rf"-{framework}-[0-9a-f]{{8}}$", folder.resolve().name):
        raise InputError(f"{folder} is no run of this twin: its name does not end in {framework} and eight digits")
    if differing:
        raise InputError(f"{folder} has {', '.join(differing)}: give the same, or begin a new run")
    if _is_finished(folder):
        raise InputError(f"{folder} is finished: to train on from its weights, give its checkpoint as --load_model")
    try:
        return Unfinished(folder, MetricsFile(folder / "metrics.jsonl"))
    except BlockingIOError:
        raise InputError(f"{folder} still goes on in another process: wait for its end") from None
    except OSError as error:
        raise InputError(f"cannot go on with {folder} ({error.strerror}): make it writable") from error


def _is_finished(folder: Path) -> bool:
    return (folder / "result.json").exists()


def _differing(config: Any, folder: Path) -> list[str] | None:
    """The settings of a run that are not the config's, in words; None if the folder does not tell them."""
    try:
        found = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if not isinstance(found, dict):
        return None
    wanted = yaml.safe_load(dump(config))
    names = [name for name in wanted if name not in _FREE and found.get(name) != wanted[name]]
    return [f"{name} {found.get(name)}, not {wanted[name]}" for name in names]
