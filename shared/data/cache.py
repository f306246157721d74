"""Flat copies of large datasets, so that the next start reads plain arrays.

They are in `$XDG_CACHE_HOME/corl-twins/datasets`, else in `~/.cache/corl-twins/datasets`: one file for each source,
replaced when the source changes. A fault in the cache's folder or files only costs time.
"""

import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shared.files import cache_folder

LARGE = 100_000
"""Number of rows from which a dataset is cached."""

_VERSION = 1  # of the readers' output; raise it when that changes
_FACTS = "facts"
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)


class Source(NamedTuple):
    """A dataset as the readers return it.

    Attributes:
        raw: Arrays as `shared.data.read_hdf5` returns, with `next_observations` (N, S) if all of them are known, and
            with `trajectory_ends` (N,) if terminals do not end trajectories.
        attributes: Text and numbers that the dataset states, such as `env_id`.
        max_episode_steps: Time limit of the recording, or None if the dataset does not state it.
        sha256: Digest of the concatenated files.
    """

    raw: dict[str, np.ndarray]
    attributes: dict[str, Any]
    max_episode_steps: int | None = None
    sha256: str = ""


_keeping = ContextVar("keeping", default=True)


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Within the block, copies are read but none is written."""
    token = _keeping.set(False)
    try:
        yield
    finally:
        _keeping.reset(token)


def cached(files: Sequence[Path], read: Callable[[], Source]) -> Source:
    """Reads the dataset in `files` from its flat copy, if that is up to date, else by `read`.

    Args:
        files: Every file of the dataset; their paths, sizes and times show whether they have changed.
        read: Reads the dataset, without the `sha256`.
    """
    stamp = json.dumps([_VERSION, *map(_stamp, files)])
    entry = folder() / f"{hashlib.sha256(str(files[0].resolve()).encode()).hexdigest()[:24]}.npz"
    if (source := _load(entry, stamp)) is not None:
        return source
    source = read()._replace(sha256=sha256_of(files))
    if _keeping.get() and len(source.raw["observations"]) >= LARGE:
        _store(entry, stamp, source)
    return source


def folder() -> Path:
    """The folder of the flat copies; it need not exist."""
    return cache_folder() / "corl-twins" / "datasets"


def _stamp(file: Path) -> list[Any]:
    # The inode's change time differs even if a copy keeps the modification time of its original.
    status = file.stat()
    return [str(file.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def sha256_of(files: Sequence[Path]) -> str:
    """SHA-256 of the concatenated files."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _load(entry: Path, stamp: str) -> Source | None:
    """The entry's contents; None if it is missing, damaged, or was made from other files."""
    try:
        with np.load(entry, allow_pickle=False) as content:
            facts = json.loads(str(content[_FACTS]))
            if facts.pop("stamp") != stamp:
                return None
            return Source(raw={key: content[key] for key in content.files if key != _FACTS}, **facts)
    except _DAMAGE:
        return None


def _store(entry: Path, stamp: str, source: Source) -> None:
    """Writes an entry under a temporary name, then renames it, because two processes may do so at the same time."""
    facts = {"stamp": stamp, **source._asdict()}
    del facts["raw"]
    partial = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, suffix=".partial", delete=False) as file:
            partial = Path(file.name)
            content: dict[str, Any] = {**source.raw, _FACTS: np.array(json.dumps(facts))}
            np.savez(file, **content)
        os.replace(partial, entry)
    except OSError:  # a full disk or a folder that is not the user's
        if partial is not None:
            partial.unlink(missing_ok=True)
