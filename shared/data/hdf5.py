"""Reads arrays out of HDF5 files that may be damaged or hostile.

A file of a few kilobytes can declare arrays of terabytes, unpack to gigabytes, or have the library read other files of
the user's. So what a file declares is checked before any of it is read, and only what lies in the file itself is read.
"""

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from shared.errors import InputError

MAX_BYTES = 8 * 2**30
"""Most bytes that the arrays of one file may take in memory; D4RL's largest take one eighth of that."""

_MOST_PACKED = 1100  # bytes out of one: deflate, the densest of HDF5's filters, reaches 1032
_UNWRITTEN = 16 * 2**20  # bytes that an array may declare without having written them, zeros by default
_CHUNK = 16 * 2**20  # bytes of a chunk that is larger than its array
_CHUNK_OVERHEAD = 4096  # bytes by which a filter may fail to shrink a chunk

# Whatever h5py raises on a damaged file, depending on where the damage is.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Reads those of the named arrays that lie at the top of the file.

    Args:
        path: An HDF5 file.
        names: Arrays wanted; what is not in the file is left out.

    Returns:
        The arrays in the file's own types and shapes, all of them numbers.

    Raises:
        InputError: The file is missing, is damaged or refers to other files. Or an array is no numbers, is larger than
            `MAX_BYTES`, or is larger than the bytes that are stored for it can be.
    """
    with _opened(path) as file:
        arrays = {name: array for name in names if (array := _find(file, name)) is not None}
        for name, array in arrays.items():
            _check_declaration(f"{path}: {name}", array, path.stat().st_size)
        if (size := sum(map(_declared_bytes, arrays.values()))) > MAX_BYTES:
            raise InputError(f"{path} declares {size:,} bytes of arrays; split it below {MAX_BYTES:,}")
        return {name: array[()] for name, array in arrays.items()}


def declared_shapes(path: Path, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Shapes of those of the named arrays that lie at the top of the file, without reading them.

    Raises:
        InputError: The file is missing or damaged, or an array is elsewhere.
    """
    with _opened(path) as file:
        arrays = {name: _find(file, name) for name in names}
        return {name: array.shape or () for name, array in arrays.items() if array is not None}


def read_text(path: Path, name: str) -> str:
    """A single text at the top of the file; empty where there is none of this name, or something else.

    Raises:
        InputError: The file is missing or damaged, or the text is elsewhere.
    """
    with _opened(path) as file:
        item = _find(file, name)
        if item is None or item.shape != () or h5py.check_string_dtype(item.dtype) is None:
            return ""
        return _python_value(item[()])


def read_attributes(path: Path) -> dict[str, Any]:
    """The file's own attributes that are one text or one number each, as Python's own types; others are left out.

    Raises:
        InputError: The file is missing or damaged.
    """
    with _opened(path) as file:
        return {key: _python_value(file.attrs[key]) for key in file.attrs if _is_plain(file.attrs.get_id(key))}


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """The file, whose faults are told in one line, whenever they come to light."""
    if not os.path.isfile(path):  # False too of a name that the system does not take
        raise InputError(f"no dataset at {path}: put the file there or correct the path")
    try:
        with h5py.File(path) as file:
            yield file
    except InputError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is truncated or not an HDF5 file: fetch it again ({reason})") from error


def _find(file: h5py.File, name: str) -> h5py.Dataset | None:
    """The array of that name, without following a link: that could open another file."""
    links, key = file.id.links, name.encode()
    if not links.exists(key):
        return None
    if links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise InputError(f"{file.filename}: {name} is a link to elsewhere: copy the array itself into the file")
    item = file[name]
    return item if isinstance(item, h5py.Dataset) else None


def _declared_bytes(array: h5py.Dataset) -> int:
    return math.prod(array.shape or ()) * array.dtype.itemsize


def _check_declaration(where: str, array: h5py.Dataset, file_size: int) -> None:
    """Refuses an array whose reading could touch other files or take more memory than it holds."""
    if array.is_virtual or array.external:
        raise InputError(f"{where} keeps its values in other files: copy them into this one")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {array.dtype}; write it as numbers")
    stored = min(array.id.get_storage_size(), file_size)
    declared, filters = _declared_bytes(array), array.id.get_create_plist().get_nfilters()
    if declared > stored * (_MOST_PACKED if filters else 1) + _UNWRITTEN:
        raise InputError(f"{where} declares {declared:,} bytes but {stored:,} are stored for it: write it in full")
    if array.chunks is not None:
        _check_chunks(where, array, declared)


def _check_chunks(where: str, array: h5py.Dataset, declared: int) -> None:
    size = math.prod(array.chunks) * array.dtype.itemsize
    if size > max(declared, _CHUNK):
        raise InputError(f"{where} has chunks of {size:,} bytes, more than the array: write it in smaller ones")
    largest = 0

    def look(chunk: h5py.h5d.StoreInfo) -> None:
        nonlocal largest
        largest = max(largest, chunk.size)

    array.id.chunk_iter(look)
    if largest > size + _CHUNK_OVERHEAD:
        raise InputError(f"{where} stores {largest:,} bytes for a chunk of {size:,}: write it again")


def _is_plain(attribute: h5py.h5a.AttrID) -> bool:
    return attribute.shape == () and (attribute.dtype.kind in "biufS" or h5py.check_string_dtype(attribute.dtype))


def _python_value(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode(errors="replace") if isinstance(value, bytes) else value
