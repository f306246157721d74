"""Weights & Biases, where a run's metrics go too if that is wanted."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from shared.errors import InputError, reason


def wandb_logger(settings: Mapping[str, Any]) -> "WandbLogger | None":
    """Weights & Biases if it is wanted.

    Args:
        settings: All of a run, `project`, `group` and `wandb_mode` among them.

    Raises:
        InputError: It should be online but nobody is logged in, or it cannot be imported.
    """
    mode = settings["wandb_mode"]
    return None if mode == "off" else WandbLogger(_import(mode), settings)


def _import(mode: str) -> ModuleType:
    """The package, able to go online without asking if it should."""
    try:
        import wandb  # takes half a second, and most runs do without

        ready = mode == "offline" or wandb.login(prompt=False)
    except Exception as error:  # its own, its libraries' and the network's
        raise _cannot_start(error) from error
    if not ready:
        raise InputError("Weights & Biases has no API key: run `wandb login` once, or use --wandb_mode offline")
    return wandb


class WandbLogger:
    """A record of Weights & Biases, made or gone on with."""

    name = "Weights & Biases"

    def __init__(self, wandb: Any, settings: Mapping[str, Any]) -> None:
        """Nothing is sent before `start`; `wandb` is the package."""
        self._wandb, self._settings = wandb, settings
        self._record: Any = None

    def start(self, folder: Path, step: int) -> None:
        """Begins the record, or goes on with it; the last eight digits of the folder's name are its id.

        Raises:
            InputError: It cannot start.
        """
        try:
            self._record = self._wandb.init(
                project=self._settings["project"],
                group=self._settings["group"],
                name=folder.name,
                id=folder.name.rpartition("-")[2],
                resume="allow",
                config=dict(self._settings),
                dir=folder,
                mode=self._settings["wandb_mode"],
                reinit="create_new",  # a record for each of several seeds at once
            )
        except Exception as error:  # its own, its service's and the disk's
            raise _cannot_start(error) from error

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Takes a row of metrics."""
        self._record.log(dict(row), step=step)

    def finish(self, finished: bool) -> None:
        """Ends the record, where it has begun."""
        if self._record is not None:
            self._record.finish(exit_code=0 if finished else 1)


def _cannot_start(error: Exception) -> InputError:
    return InputError(f"Weights & Biases cannot start ({reason(error)}): use --wandb_mode offline, or off")
