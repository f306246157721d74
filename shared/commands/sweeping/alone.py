"""A lock on a folder, in which only one command at a time makes runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from shared.errors import InputError


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Creates the folder, and locks it against other sweeps and searches.

    Raises:
        InputError: Another one is working there, or the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".sweep.lock", blocking=False):
            yield
    except Timeout:
        raise InputError(f"another sweep works in {folder}: wait for its end, or name another folder") from None
    except OSError as error:
        raise InputError(f"cannot use {folder} ({error.strerror}): name another folder") from error
