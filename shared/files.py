"""Writes files so that neither readers nor crashes leave half a file; finds the user's folders."""

import contextlib
import os
from pathlib import Path

from shared.errors import InputError


def home() -> Path:
    """The user's home folder.

    Raises:
        InputError: The home folder is unknown.
    """
    try:
        return Path.home()
    except RuntimeError:
        raise InputError("your home folder is unknown: set HOME to its path") from None


def cache_folder() -> Path:
    """The user's folder for caches: `$XDG_CACHE_HOME` if it is an absolute path, else `~/.cache`."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return chosen if chosen.is_absolute() else home() / ".cache"


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file under a temporary name, then renames it in one step; creates missing folders.

    After this returns, the file survives a power cut. If writing fails, an older file of that name stays unchanged, and
    no part of the new one is left.
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
    """Makes a new name in a folder survive a power cut, if the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
