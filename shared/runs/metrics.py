"""The file of a run's metrics: lines of JSON, kept in memory while the disk is full, and locked by one process."""

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
"""The key that states which value in a row was not finite, such as a loss or the return of an evaluation."""


def finite(content: Any) -> Any:
    """Copies nested lists and mappings, with None for NaN and infinity, which JSON cannot express."""
    if isinstance(content, Mapping):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


class MetricsFile:
    """A JSON lines file whose rows are written at once; rows that cannot be written wait in memory for the next try.

    A lock keeps two processes from continuing the same run. The operating system releases it when the process ends.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file, or creates it.

        Raises:
            BlockingIOError: Another process has locked it.
            OSError: It cannot be opened.
        """
        self._path = path
        # Unbuffered, so that a row that cannot be written stays in `_waiting`
        self._file = path.open("a+b", buffering=0)
        self._waiting = b""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise

    @property
    def size(self) -> int:
        """Size of all rows in bytes, including rows that still wait."""
        return os.fstat(self._file.fileno()).st_size + len(self._waiting)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row; numbers that are not finite become null.

        Raises:
            OSError: The disk cannot take the row now; it is kept for the next try.
        """
        self._waiting += json.dumps(finite(row), allow_nan=False).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Writes the waiting rows.

        Raises:
            OSError: As for `write`.
        """
        while self._waiting:
            written = self._file.write(self._waiting)
            self._waiting = self._waiting[written:]

    def sync(self) -> None:
        """Makes all rows survive a power cut.

        Raises:
            OSError: As for `write`.
        """
        self.flush()
        os.fsync(self._file.fileno())

    def rows(self, size: int) -> list[dict[str, Any]]:
        """Reads the rows in the first `size` bytes.

        Raises:
            InputError: The file is shorter, or somebody has changed it.
        """
        content = self._path.read_bytes()[:size]
        try:
            # The next row is appended to these, so they must end with a newline.
            if len(content) < size or not content.endswith(b"\n"[:size]):
                raise ValueError
            rows = [json.loads(line) for line in content.splitlines()]
        except (ValueError, RecursionError):
            raise self._changed() from None
        if not all(isinstance(row, dict) and type(row.get("step")) is int for row in rows):
            raise self._changed()
        return rows

    def evaluations(self, size: int, outcomes: str) -> list[tuple[dict[str, Any], np.ndarray]]:
        """Reads the evaluations in the first `size` bytes: each row, and its outcomes (n_episodes,) under this key.

        Raises:
            InputError: As for `rows`.
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
        """Cuts the file to its first `size` bytes."""
        self._file.truncate(size)

    def close(self) -> None:
        """Closes the file, which releases its lock."""
        self._file.close()


def _numbers(values: Any) -> np.ndarray:
    """Converts a row's outcomes to an array, with NaN for null."""
    unknown = np.array([value is None for value in values])
    numbers = np.asarray([np.nan if value is None else value for value in values], dtype=float)
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers[~unknown]).all():
        raise ValueError(numbers)
    return numbers
