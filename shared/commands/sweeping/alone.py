"""A folder in which one command at a time makes runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from shared.errors import InputError


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Makes the folder, and keeps other sweeps and searches out of it.

    Raises:
        InputError: Another one works there, or the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".sweep.lock", blocking=False):
            yield
    except Timeout:
        raise InputError(f"another sweep works in {folder}: wait for its end, or name another folder") from None
    except OSError as error:
        raise InputError(f"cannot use {folder} ({error.strerror}): name another folder") from error
