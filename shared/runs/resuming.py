"""Finds the run that `--resume` means."""

import re
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from shared.errors import InputError
from shared.names import is_file_name
from shared.runs.configs import dump
from shared.runs.metrics import MetricsFile
from shared.runs.progress import warn
from shared.runs.settings import RecordConfig
from shared.runs.vocabulary import in_house

AUTO = "auto"
# Settings that do not change what a run computes, or that only decide where it is stored
FREE = ("resume", "device", "wandb_mode", "tensorboard", "log_freq", "runs_path", "on_nan")
# A run's settings are names with numbers, texts or lists of numbers, a few thousand bytes in all.
_LARGEST, _DEEPEST = 1_000_000, 3


class RunStatus(Enum):
    """How far a run with given settings has come."""

    MISSING = "not begun, or not finished"
    GOING_ON = "going on in another process"
    FINISHED = "finished"


class Unfinished(NamedTuple):
    """A run to resume; its metrics file is open, and locked against other processes until it is closed."""

    folder: Path
    metrics: MetricsFile


def unfinished(config: RecordConfig, algorithm: str, framework: str) -> Iterator[Unfinished]:
    """Yields the runs that `config.resume` may mean, one after another; none if a new run should begin.

    Args:
        config: Has `resume`: empty, a run's folder, or `auto`. `auto` means every unfinished run under `runs_path` that
            has the same settings and that no other process has open, the latest first. Runs that cannot be used are
            skipped with a warning.
        algorithm: Name of the algorithm, such as `td3_bc`.
        framework: `torch` or `jax`.

    Raises:
        InputError: The named folder is not a run of this twin, is finished, is still running, or has other settings.
    """
    if config.resume == AUTO:
        yield from _latest(config, algorithm, framework)
    elif config.resume:
        yield _named(config, Path(config.resume), algorithm, framework)


def dataset_name(config: RecordConfig) -> str:
    """The dataset's name in the run's name; for a file, its name without folder and suffix."""
    return Path(config.env).stem if is_file_name(config.env) else config.env


def run_name(config: RecordConfig) -> str:
    """The name of a run's folder without the framework and the digits after it."""
    return f"{config.name}-{dataset_name(config)}-s{config.seed}".replace("/", "-").replace(":", "-")


def fingerprint(config: RecordConfig) -> str:
    """A hash of all settings that affect what a run computes, in eight hexadecimal digits."""
    deciding = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in FREE}
    return sha256(repr(deciding).encode()).hexdigest()[:8]


def begun(config: RecordConfig, algorithm: str, framework: str) -> list[Path]:
    """The folders under `runs_path` of runs with this config's settings, finished or not; locks none of them."""
    return [folder for folder in alike(config, framework) if has_settings(config, algorithm, folder)]


def alike(config: RecordConfig, framework: str) -> list[Path]:
    """The folders under `runs_path` with the name of this config's runs, whatever their settings."""
    pattern = re.compile(rf"{re.escape(run_name(config))}-{framework}-[0-9a-f]{{8}}")
    folders = (path.parent for path in Path(config.runs_path).glob("*/config.yaml"))
    return [folder for folder in folders if pattern.fullmatch(folder.name)]


def has_settings(config: RecordConfig, algorithm: str, folder: Path) -> bool:
    """Whether a folder contains a run with this config's settings, under current or older names."""
    return _differing(config, algorithm, folder) == []


def run_status(config: RecordConfig, algorithm: str, framework: str) -> tuple[RunStatus, Path | None]:
    """The status of the run under `runs_path` that has come furthest with this config's settings, and its folder."""
    found: tuple[RunStatus, Path | None] = (RunStatus.MISSING, None)
    for folder in begun(config, algorithm, framework):
        if _is_finished(folder):
            return RunStatus.FINISHED, folder
        try:
            _taken(folder).metrics.close()
        except BlockingIOError:
            found = (RunStatus.GOING_ON, folder)
        except FileExistsError:
            return RunStatus.FINISHED, folder
        except OSError as error:
            warn(f"{folder} is passed over: it cannot be written ({error.strerror})")
    return found


def defaults_of_later(config: RecordConfig) -> dict[str, Any]:
    """The values of newer settings that reproduce runs of earlier versions, as YAML stores them."""
    defaults = {field.name: field.default for field in fields(config) if "later" in field.metadata}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}


def _latest(config: RecordConfig, algorithm: str, framework: str) -> Iterator[Unfinished]:
    for folder in sorted(alike(config, framework), key=_begun, reverse=True):
        if _is_finished(folder):
            continue
        differing = _differing(config, algorithm, folder)
        if differing is None:
            warn(f"{folder} is passed over: its config.yaml cannot be read")
        elif not differing:
            try:
                yield _taken(folder)
            except (BlockingIOError, FileExistsError):  # another process has it, or has just finished it
                continue
            except OSError as error:
                warn(f"{folder} is passed over: it cannot be written ({error.strerror})")


def _named(config: RecordConfig, folder: Path, algorithm: str, framework: str) -> Unfinished:
    differing = _differing(config, algorithm, folder)
    if differing is None:
        raise InputError(f"{folder} is no run's folder, or its config.yaml is damaged: name another, or auto")
    if not re.search(rf"-{framework}-[0-9a-f]{{8}}$", folder.resolve().name):
        ours = "JAX" if framework == "jax" else "PyTorch"
        raise InputError(
            f"{folder} was not trained with {ours}, since its name does not end in {framework} and eight digits: "
            "resume it with the file that began it, or set load_model to its checkpoint, after `corl-twins convert`"
        )
    if differing:
        raise InputError(f"{folder} has {', '.join(differing)}: give the same, or begin a new run")
    try:
        return _taken(folder)
    except FileExistsError:
        reason = f"{folder} is finished: to train on from its weights, set load_model to its checkpoint"
        raise InputError(reason) from None
    except BlockingIOError:
        raise InputError(f"{folder} is still running in another process: wait for its end") from None
    except OSError as error:
        raise InputError(f"cannot continue {folder} ({error.strerror}): make it writable") from error


def _taken(folder: Path) -> Unfinished:
    """Locks a run for this process.

    Raises:
        BlockingIOError: Another process has locked it.
        FileExistsError: It is finished.
        OSError: It cannot be written.
    """
    metrics = MetricsFile(folder / "metrics.jsonl")
    # Checked under the lock, because another process may have finished the run just before.
    if _is_finished(folder):
        metrics.close()
        raise FileExistsError(folder / "result.json")
    return Unfinished(folder, metrics)


def _is_finished(folder: Path) -> bool:
    return (folder / "result.json").exists()


def _begun(folder: Path) -> float:
    """The time when a run's settings were written; 0 if they have disappeared."""
    try:
        return (folder / "config.yaml").stat().st_mtime
    except OSError:
        return 0.0


class _SettingsLoader(yaml.SafeLoader):
    """Reads a run's settings, and refuses aliases and deep nesting, a few lines of which can expand to gigabytes."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Composes a node as PyYAML does, if it is a node that a run's settings can have.

        Raises:
            yaml.YAMLError: The node is an alias, or is nested too deeply.
        """
        if self.check_event(yaml.AliasEvent) or self.depth >= _DEEPEST:
            raise yaml.YAMLError("no settings of a run")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _differing(config: RecordConfig, algorithm: str, folder: Path) -> list[str] | None:
    """Describes the settings of a run that differ from the config's; None if the folder has no readable settings.

    Older names of settings are understood.
    """
    path = folder / "config.yaml"
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        found = yaml.load(path.read_text(), _SettingsLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if not isinstance(found, dict):
        return None
    try:
        found = in_house(found, [field.name for field in fields(config)], algorithm)
    except InputError:
        return None
    found = defaults_of_later(config) | found
    wanted = yaml.safe_load(dump(config))
    differing = [name for name in wanted if name not in FREE and found.get(name) != wanted[name]]
    return [f"{name} {found.get(name)}, not {wanted[name]}" for name in differing]
