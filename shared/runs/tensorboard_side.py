"""TensorBoard: writes an event file into a run's folder if the settings say so."""

import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from imageio.v3 import improps

from shared.errors import InputError, reason
from shared.runs.curves import PICTURE

_RGBA = 4


def tensorboard_logger(settings: Mapping[str, Any]) -> "TensorboardLogger | None":
    """Creates a logger for TensorBoard if the settings say so.

    Args:
        settings: All settings of a run, including `tensorboard`; TensorBoard lists them as hyperparameters.

    Raises:
        InputError: The package cannot be imported.
    """
    return TensorboardLogger(_import(), settings) if settings["tensorboard"] else None


class Library(NamedTuple):
    """The classes of TensorBoard's own package that write events."""

    Event: Any
    SessionLog: Any
    Summary: Any
    hparams_pb: Any
    EventFileWriter: Any


def _import() -> Library:
    """Imports the package only when it is needed, because that takes half a second."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except Exception as error:  # its own errors, or its dependencies'
        words = f"TensorBoard cannot be used ({reason(error)})"
        raise InputError(f"{words}: pip install 'corl-twins[tensorboard]', or leave out --tensorboard") from error
    return Library(Event, SessionLog, Summary, hparams_pb, EventFileWriter)


class TensorboardLogger:
    """Writes event files: one for a new run, and a further one each time it is resumed."""

    name = "TensorBoard"

    def __init__(self, library: Library, settings: Mapping[str, Any]) -> None:
        """Stores the settings; `start` opens the file."""
        self._library, self._settings = library, settings
        self._writer: Any = None

    def start(self, folder: Path, step: int) -> None:
        """Opens an event file, and writes the settings.

        The file voids all events after `step` in earlier files.

        Raises:
            InputError: The file cannot be written.
        """
        try:
            self._writer = self._library.EventFileWriter(str(folder))
        except OSError as error:
            raise InputError(f"TensorBoard's file cannot be written in {folder} ({reason(error)})") from error
        self._folder, self._last = folder, step
        self._add(step + 1, session_log=self._library.SessionLog(status=self._library.SessionLog.START))
        settings = {name: _plain(value) for name, value in self._settings.items()}
        self._add(step + 1, summary=self._library.hparams_pb(settings, trial_id=folder.name))

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Writes a row's numbers, each under its own name."""
        numbers = {name: float(value) for name, value in row.items() if name != "step" and isinstance(value, Real)}
        values = [self._library.Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._add(step, summary=self._library.Summary(value=values))
        self._last = step

    def finish(self, finished: bool) -> None:
        """Adds the learning curve from the run's folder, and closes the file."""
        if self._writer is None:
            return
        try:
            self._draw(self._folder / PICTURE)
        finally:
            self._writer.close()

    def _draw(self, path: Path) -> None:
        """Adds a picture, if it exists."""
        if path.exists():
            height, width, _ = improps(path, plugin="pillow").shape
            image = self._library.Summary.Image(
                height=height, width=width, colorspace=_RGBA, encoded_image_string=path.read_bytes()
            )
            value = self._library.Summary.Value(tag=path.stem, image=image)
            self._add(self._last, summary=self._library.Summary(value=[value]))

    def _add(self, step: int, **content: Any) -> None:
        """Writes an event."""
        self._writer.add_event(self._library.Event(wall_time=time.time(), step=step, **content))


def _plain(value: Any) -> bool | int | float | str:
    """Converts a setting to a type that TensorBoard's table supports."""
    return value if isinstance(value, bool | int | float | str) else str(value)
