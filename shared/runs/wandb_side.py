"""Weights & Biases, as an optional logger of a run's metrics."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from shared.errors import InputError, reason


def wandb_logger(settings: Mapping[str, Any]) -> "WandbLogger | None":
    """Creates a logger for Weights & Biases if the settings say so.

    Args:
        settings: All settings of a run, including `project`, `group` and `wandb_mode`.

    Raises:
        InputError: The mode is online but nobody is logged in, or the package cannot be imported.
    """
    mode = settings["wandb_mode"]
    return None if mode == "off" else WandbLogger(_import(mode), settings)


def _import(mode: str) -> ModuleType:
    """Imports the package, logged in without a prompt if the mode is online."""
    try:
        import wandb  # takes half a second, and most runs do not need it

        ready = mode == "offline" or wandb.login(prompt=False)
    except Exception as error:  # its own errors, its dependencies' or the network's
        raise _cannot_start(error) from error
    if not ready:
        raise InputError("Weights & Biases has no API key: run `wandb login` once, or set wandb_mode to offline")
    return wandb


class WandbLogger:
    """A Weights & Biases run, new or resumed."""

    name = "Weights & Biases"

    def __init__(self, wandb: Any, settings: Mapping[str, Any]) -> None:
        """Stores the package `wandb` and the settings; sends nothing before `start`."""
        self._wandb, self._settings = wandb, settings
        self._record: Any = None

    def start(self, folder: Path, step: int) -> None:
        """Starts the Weights & Biases run, or resumes it; its id is the last eight digits of the folder's name.

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
                reinit="create_new",  # several seeds in one process each need a run
            )
        except Exception as error:  # its own errors, its service's or the disk's
            raise _cannot_start(error) from error

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Logs a row of metrics."""
        self._record.log(dict(row), step=step)

    def finish(self, finished: bool) -> None:
        """Ends the Weights & Biases run, if it has started."""
        if self._record is not None:
            self._record.finish(exit_code=0 if finished else 1)


def _cannot_start(error: Exception) -> InputError:
    return InputError(f"Weights & Biases cannot start ({reason(error)}): set wandb_mode to offline or off")
