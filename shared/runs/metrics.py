"""The file of a run's metrics: lines of JSON that outlive a full disk, and a process at a time that writes them."""

import fcntl
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import InputError

DIVERGED = "diverged"
"""In a row: what was not finite, a loss say, or the return of an evaluation."""


def finite(content: Any) -> Any:
    """The same numbers, lists and mappings, with None for NaN and infinity, which JSON has no words for."""
    if isinstance(content, Mapping):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


class MetricsFile:
    """Rows, one line each, written at once; what the disk does not take waits in memory and is tried again.

    The file is locked, so that no two processes go on with one run. The lock ends with the process, however that ends.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it.

        Raises:
            BlockingIOError: Another process has it.
            OSError: It cannot be opened.
        """
        self._path = path
        # Without a buffer, so that a row that cannot be written stays in our hands.
        self._file = path.open("a+b", buffering=0)
        self._waiting = b""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise

    @property
    def size(self) -> int:
        """Of all rows, in bytes."""
        return os.fstat(self._file.fileno()).st_size + len(self._waiting)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row; a number that is not finite becomes null.

        Raises:
            OSError: The disk does not take it now; it is not lost.
        """
        self._waiting += json.dumps(finite(row), allow_nan=False).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Writes what waits.

        Raises:
            OSError: As `write`.
        """
        while self._waiting:
            written = self._file.write(self._waiting)
            self._waiting = self._waiting[written:]

    def sync(self) -> None:
        """Makes all rows survive a power cut.

        Raises:
            OSError: As `write`.
        """
        self.flush()
        os.fsync(self._file.fileno())

    def rows(self, size: int) -> list[dict[str, Any]]:
        """The rows of the first `size` bytes.

        Raises:
            InputError: The file is shorter, or somebody changed it.
        """
        content = self._path.read_bytes()[:size]
        try:
            # The next row is written behind these, and must begin a line.
            if len(content) < size or not content.endswith(b"\n"[:size]):
                raise ValueError
            rows = [json.loads(line) for line in content.splitlines()]
        except (ValueError, RecursionError):
            raise self._changed() from None
        if not all(isinstance(row, dict) and type(row.get("step")) is int for row in rows):
            raise self._changed()
        return rows

    def evaluations(self, size: int, outcomes: str) -> list[tuple[dict[str, Any], np.ndarray]]:
        """The rows of the evaluations in the first `size` bytes, each with its outcomes (n_episodes,) of this name.

        Raises:
            InputError: As `rows`.
        """
        try:
            return [(row, _numbers(row[outcomes])) for row in self.rows(size) if outcomes in row]
        except InputError:
            raise
        except (TypeError, ValueError, OverflowError):
            raise self._changed() from None

    def _changed(self) -> InputError:
        return InputError(f"{self._path} is not what the run wrote: put its own file back")

    def truncate(self, size: int) -> None:
        """Leaves the first `size` bytes."""
        self._file.truncate(size)

    def close(self) -> None:
        """Closes the file, and lets another process have it."""
        self._file.close()


def _numbers(values: Any) -> np.ndarray:
    """A row's outcomes; NaN where the run wrote that one was not finite."""
    unknown = np.array([value is None for value in values])
    numbers = np.asarray([np.nan if value is None else value for value in values], dtype=float)
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers[~unknown]).all():
        raise ValueError(numbers)
    return numbers
