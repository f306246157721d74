"""Optional loggers that receive a run's rows of metrics: Weights & Biases, TensorBoard."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from shared.runs.extras import Extra
from shared.runs.settings import RecordConfig
from shared.runs.tensorboard_side import tensorboard_logger
from shared.runs.wandb_side import wandb_logger


class Logger(Protocol):
    """A logger, which receives a run's metrics as it progresses.

    Attributes:
        name: Its name in messages.
    """

    name: str

    def start(self, folder: Path, step: int) -> None:
        """Starts logging a run in `folder`, or continues after `step` updates, whose later rows are logged again.

        Raises:
            InputError: It cannot start.
        """

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Logs a row of metrics."""

    def finish(self, finished: bool) -> None:
        """Ends logging. `finished` is False after an exception, or if the run never started."""


class Loggers:
    """The loggers that a run's settings select. Once they have started, their errors do not end the run."""

    def __init__(self, config: RecordConfig) -> None:
        """Checks that the loggers can start; writes nothing.

        Args:
            config: Has the settings of `RecordConfig`.

        Raises:
            InputError: A logger cannot start.
        """
        settings = dataclasses.asdict(config)
        found: list[Logger | None] = [wandb_logger(settings), tensorboard_logger(settings)]
        self._loggers = [(logger, Extra(f"{logger.name} has failed")) for logger in found if logger is not None]

    def start(self, folder: Path, step: int) -> None:
        """Starts all loggers, or none.

        Raises:
            InputError: A logger cannot start.
        """
        try:
            for logger, _ in self._loggers:
                logger.start(folder, step)
        except BaseException:
            self.finish(finished=False)
            raise

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Logs a row with every logger."""
        for logger, told in self._loggers:
            with told.spared():
                logger.log(row, step)

    def finish(self, finished: bool) -> None:
        """Ends every logger."""
        for logger, told in self._loggers:
            with told.spared():
                logger.finish(finished)
