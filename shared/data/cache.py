"""A flat copy of each large dataset that was read, so that the next start reads plain arrays.

It lies in `$XDG_CACHE_HOME/corl-twins/datasets`, else in `~/.cache/corl-twins/datasets`: one file for each source,
replaced when the source changes. Whatever is wrong with the cache, its folder or its files, costs time only.
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
"""Rows from which a dataset is kept."""

_VERSION = 1  # of what the readers make out of a file; raise it when they change
_FACTS = "facts"
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)


class Source(NamedTuple):
    """A dataset as it was read.

    Attributes:
        raw: Arrays as `shared.data.read_hdf5` returns, with `next_observations` (N, S) where every row's are known, and
            `trajectory_ends` (N,) where a terminal ends no trajectory.
        attributes: What the dataset says about itself, such as `env_id`: text and numbers.
        max_episode_steps: Time limit under which it was recorded, None where the dataset does not say.
        sha256: Of the files' content, one after the other.
    """

    raw: dict[str, np.ndarray]
    attributes: dict[str, Any]
    max_episode_steps: int | None = None
    sha256: str = ""


_keeping = ContextVar("keeping", default=True)


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Within the block copies are read, and none is written."""
    token = _keeping.set(False)
    try:
        yield
    finally:
        _keeping.reset(token)


def cached(files: Sequence[Path], read: Callable[[], Source]) -> Source:
    """The dataset in `files`: from the flat copy if one was made from these very files, else from `read`.

    Args:
        files: Every file that the dataset is made of; their paths, sizes and times tell whether they have changed.
        read: Reads the dataset; what it returns lacks the `sha256` only.
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
    """Where the flat copies lie; it need not exist."""
    return cache_folder() / "corl-twins" / "datasets"


def _stamp(file: Path) -> list[Any]:
    # The time of the last change to the inode moves even where a copy restores the time of the content's.
    status = file.stat()
    return [str(file.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def sha256_of(files: Sequence[Path]) -> str:
    """SHA-256 of the files' content, one after the other."""
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
    """Writes an entry beside its place, under a name of its own: two processes may do so at the same time."""
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
