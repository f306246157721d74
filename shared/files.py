"""Writing files so that a reader, or a crash, never meets half of one; and where files of the user's are kept."""

import contextlib
import os
from pathlib import Path

from shared.errors import InputError


def home() -> Path:
    """The user's home folder.

    Raises:
        InputError: Nobody can tell which it is.
    """
    try:
        return Path.home()
    except RuntimeError:
        raise InputError("your home folder is unknown: set HOME to its path") from None


def cache_folder() -> Path:
    """The user's folder for caches: `$XDG_CACHE_HOME` where that is an absolute path, else `~/.cache`."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return chosen if chosen.is_absolute() else home() / ".cache"


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file beside its final place, then moves it there in one step; makes missing folders.

    Afterwards it survives a power cut. A write that fails leaves an older file of that name as it was, and no part of
    the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes a new name in a folder survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
