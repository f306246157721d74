"""Where a run's rows go besides its folder, if that is wanted: Weights & Biases, TensorBoard."""

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
        name: As messages have it.
    """

    name: str

    def start(self, folder: Path, step: int) -> None:
        """Begins with a run in `folder`, or goes on with it after `step` updates; rows after those come again.

        Raises:
            InputError: It cannot start.
        """

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Takes a row of metrics."""

    def finish(self, finished: bool) -> None:
        """Learns that the run has ended, by itself or by an exception; or that it has never begun."""


class Loggers:
    """The loggers that a run's settings ask for. Once started, none of them ends the run by what it raises."""

    def __init__(self, config: RecordConfig) -> None:
        """Finds out whether they could start; nothing is written.

        Args:
            config: Has the settings of `RecordConfig`.

        Raises:
            InputError: One of them could not.
        """
        settings = dataclasses.asdict(config)
        found: list[Logger | None] = [wandb_logger(settings), tensorboard_logger(settings)]
        self._loggers = [(logger, Extra(f"{logger.name} has failed")) for logger in found if logger is not None]

    def start(self, folder: Path, step: int) -> None:
        """Starts all, or none.

        Raises:
            InputError: One of them cannot start.
        """
        try:
            for logger, _ in self._loggers:
                logger.start(folder, step)
        except BaseException:
            self.finish(finished=False)
            raise

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Hands a row to all."""
        for logger, told in self._loggers:
            with told.spared():
                logger.log(row, step)

    def finish(self, finished: bool) -> None:
        """Tells all how the run ended."""
        for logger, told in self._loggers:
            with told.spared():
                logger.finish(finished)
