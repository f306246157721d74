"""Finding the run that `--resume` names."""

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
# What decides nothing that a run computes, or only where it lies
FREE = ("resume", "device", "wandb_mode", "tensorboard", "log_freq", "runs_path", "on_nan")
# Settings are names with numbers, texts or lists of numbers; they fill a few thousand bytes.
_LARGEST, _DEEPEST = 1_000_000, 3


class RunStatus(Enum):
    """How far a run of some settings has come."""

    MISSING = "not begun, or not finished"
    GOING_ON = "going on in another process"
    FINISHED = "finished"


class Unfinished(NamedTuple):
    """A run that can go on; its metrics file is open, and no other process's until it is closed."""

    folder: Path
    metrics: MetricsFile


def unfinished(config: RecordConfig, algorithm: str, framework: str) -> Iterator[Unfinished]:
    """The runs that `config.resume` means, one after another; none where a new run shall begin.

    Args:
        config: Has `resume`: empty, a run's folder, or `auto`. `auto` means all runs under `runs_path` that have the
            same settings, are not finished and are no other process's. The one begun last comes first. What cannot be
            used is passed over, and a line says so.
        algorithm: Such as `td3_bc`.
        framework: `torch` or `jax`.

    Raises:
        InputError: The folder named is no run of this twin, is finished or still goes on, or has other settings.
    """
    if config.resume == AUTO:
        yield from _latest(config, algorithm, framework)
    elif config.resume:
        yield _named(config, Path(config.resume), algorithm, framework)


def dataset_name(config: RecordConfig) -> str:
    """The run's name for its dataset; of a file, only the file's name."""
    return Path(config.env).stem if is_file_name(config.env) else config.env


def run_name(config: RecordConfig) -> str:
    """The name of a run's folder, up to its framework."""
    return f"{config.name}-{dataset_name(config)}-s{config.seed}".replace("/", "-").replace(":", "-")


def fingerprint(config: RecordConfig) -> str:
    """Eight hexadecimal digits of all settings that decide what a run computes; two runs that are alike share them."""
    deciding = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in FREE}
    return sha256(repr(deciding).encode()).hexdigest()[:8]


def begun(config: RecordConfig, algorithm: str, framework: str) -> list[Path]:
    """The folders under `runs_path` of runs with the settings of a config, finished or not; takes none of them."""
    return [folder for folder in alike(config, framework) if has_settings(config, algorithm, folder)]


def alike(config: RecordConfig, framework: str) -> list[Path]:
    """The folders under `runs_path` with the name of a config's runs, whatever their settings are."""
    pattern = re.compile(rf"{re.escape(run_name(config))}-{framework}-[0-9a-f]{{8}}")
    folders = (path.parent for path in Path(config.runs_path).glob("*/config.yaml"))
    return [folder for folder in folders if pattern.fullmatch(folder.name)]


def has_settings(config: RecordConfig, algorithm: str, folder: Path) -> bool:
    """Whether a folder holds a run with the same settings as a config, under current or older names."""
    return _differing(config, algorithm, folder) == []


def run_status(config: RecordConfig, algorithm: str, framework: str) -> tuple[RunStatus, Path | None]:
    """How far the runs under `runs_path` with the settings of a config have come, the furthest counts; its folder."""
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
    """The values that newer settings had, in effect, in runs of earlier versions, as YAML has them."""
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
            except (BlockingIOError, FileExistsError):  # another process has it, or had it until now
                continue
            except OSError as error:
                warn(f"{folder} is passed over: it cannot be written ({error.strerror})")


def _named(config: RecordConfig, folder: Path, algorithm: str, framework: str) -> Unfinished:
    differing = _differing(config, algorithm, folder)
    if differing is None:
        raise InputError(f"{folder} is no run's folder, or its config.yaml is damaged: name another, or auto")
    if not re.search(rf"-{framework}-[0-9a-f]{{8}}$", folder.resolve().name):
        raise InputError(
            f"{folder} is no run of this twin, since its name does not end in {framework} and eight digits: call the "
            "file that began it, or `corl-twins convert` its checkpoint and give that as --load_model"
        )
    if differing:
        raise InputError(f"{folder} has {', '.join(differing)}: give the same, or begin a new run")
    try:
        return _taken(folder)
    except FileExistsError:
        reason = f"{folder} is finished: to train on from its weights, give its checkpoint as --load_model"
        raise InputError(reason) from None
    except BlockingIOError:
        raise InputError(f"{folder} is still running in another process: wait for its end") from None
    except OSError as error:
        raise InputError(f"cannot continue {folder} ({error.strerror}): make it writable") from error


def _taken(folder: Path) -> Unfinished:
    """A run that is this process's from now on.

    Raises:
        BlockingIOError: It is another process's.
        FileExistsError: It is finished.
        OSError: It cannot be written.
    """
    metrics = MetricsFile(folder / "metrics.jsonl")
    # Asked when nobody else can finish it any more.
    if _is_finished(folder):
        metrics.close()
        raise FileExistsError(folder / "result.json")
    return Unfinished(folder, metrics)


def _is_finished(folder: Path) -> bool:
    return (folder / "result.json").exists()


def _begun(folder: Path) -> float:
    """When a run's settings were written; long ago if they are gone meanwhile."""
    try:
        return (folder / "config.yaml").stat().st_mtime
    except OSError:
        return 0.0


class _SettingsLoader(yaml.SafeLoader):
    """Reads what a run writes down; a few lines of aliases, or of brackets, could stand for gigabytes."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As PyYAML's, for nodes that a run's settings have.

        Raises:
            yaml.YAMLError: The node is an alias, or lies too deep.
        """
        if self.check_event(yaml.AliasEvent) or self.depth >= _DEEPEST:
            raise yaml.YAMLError("no settings of a run")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _differing(config: RecordConfig, algorithm: str, folder: Path) -> list[str] | None:
    """The settings of a run that are not the config's, in words; None if the folder does not tell them.

    A run from before a renaming has other names.
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
