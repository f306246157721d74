"""Reads arrays from HDF5 files that may be damaged or hostile.

A file of a few kilobytes can declare arrays of terabytes, unpack to gigabytes, or make the library read the user's
other files. Therefore declarations are checked before anything is read, and only data in the file itself are read.
"""

import contextlib
import importlib
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
"""Most bytes that the arrays of one file may take in memory; D4RL's largest need an eighth of that."""

_MOST_PACKED = 1100  # unpacked bytes per byte: deflate, the densest of HDF5's filters, reaches 1032
_UNWRITTEN = 16 * 2**20  # bytes that an array may declare without storing them; they read as zeros
_CHUNK = 16 * 2**20  # largest chunk, in bytes, of an array that is smaller
_CHUNK_OVERHEAD = 4096  # bytes that a filter may add to a chunk

# What h5py raises on damaged files, depending on the position of the damage
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Reads the named arrays at the top level of a file.

    Args:
        path: An HDF5 file.
        names: The arrays to read; names that are not in the file are skipped.

    Returns:
        The arrays in the file's own types and shapes, all of them numbers.

    Raises:
        InputError: The file is missing, is damaged or refers to other files. Or an array does not contain numbers, is
            larger than `MAX_BYTES`, or is larger than its stored bytes allow.
    """
    with _opened(path) as file:
        arrays = {name: array for name in names if (array := _find(file, name)) is not None}
        for name, array in arrays.items():
            _check_declaration(f"{path}: {name}", array, path.stat().st_size)
        if (size := sum(map(_declared_bytes, arrays.values()))) > MAX_BYTES:
            raise InputError(f"{path} declares {size:,} bytes of arrays; split it below {MAX_BYTES:,}")
        return {name: array[()] for name, array in arrays.items()}


def read_tree(path: Path) -> dict[str, Any]:
    """Reads all arrays of numbers in a file, including those in groups, as nested dictionaries.

    Links and other arrays are left out.

    Raises:
        InputError: As for `read_arrays`.
    """
    with _opened(path) as file:
        left = [MAX_BYTES]
        return _tree(file, str(path), path.stat().st_size, left)


def _tree(group: h5py.Group, where: str, file_size: int, left: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in group:
        if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            continue
        item, here = group[name], f"{where}: {name}"
        if isinstance(item, h5py.Group):
            found[name] = _tree(item, here, file_size, left)
        elif isinstance(item, h5py.Dataset) and item.dtype.kind in "biuf" and item.shape is not None:
            _check_declaration(here, item, file_size)
            left[0] -= _declared_bytes(item)
            if left[0] < 0:
                raise InputError(f"{where} is in a file of more than {MAX_BYTES:,} bytes of arrays: split it")
            found[name] = item[()]
    return found


def declared_shapes(path: Path, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of the named arrays at the top level of a file, without reading them.

    Raises:
        InputError: The file is missing or damaged, or an array is a link.
    """
    with _opened(path) as file:
        arrays = {name: _find(file, name) for name in names}
        return {name: array.shape or () for name, array in arrays.items() if array is not None}


def read_text(path: Path, name: str) -> str:
    """A single text at the top level of a file; empty if there is none of this name.

    Raises:
        InputError: The file is missing or damaged, or the text is a link.
    """
    with _opened(path) as file:
        item = _find(file, name)
        if item is None or item.shape != () or h5py.check_string_dtype(item.dtype) is None:
            return ""
        return _python_value(item[()])


def read_attributes(path: Path) -> dict[str, Any]:
    """The file's own attributes that are a single text or number, as Python types; others are left out.

    Raises:
        InputError: The file is missing or damaged.
    """
    with _opened(path) as file:
        return {key: _python_value(file.attrs[key]) for key in file.attrs if _is_plain(file.attrs.get_id(key))}


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Opens a file, and reports its faults in one line, whenever they occur."""
    if not os.path.isfile(path):  # also for names that the system does not allow
        raise InputError(f"no dataset at {path}: put the file there or correct the path")
    try:
        with h5py.File(path) as file:
            yield file
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(f"{path} {_fault(path, error)}") from error


# First bytes of other formats, with advice
_OTHER_FORMATS = {
    b"PK\x03\x04": "is an archive, as NumPy's .npz files are: turn it into HDF5 with `corl-twins datasets import`",
    b"\x93NUMPY": "is an array of NumPy's: turn it into HDF5 with `corl-twins datasets import`",
    b"\x80": "is a pickle: turn it into HDF5 with `corl-twins datasets import`",
    b"version https://git-lfs": "is a pointer to a file in Git LFS: fetch the file itself with `git lfs pull`",
    b"PAR1": "is a table in Parquet's format, which is not read here: write its columns as arrays into an HDF5 file",
    b"<": "is a page of a web site: fetch the file itself",
}


def _fault(path: Path, error: Exception) -> str:
    """The reason why a file cannot be read, and advice."""
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, BlockingIOError) or "unable to lock file" in reason:
        return (
            "is locked: another process is writing it; wait until it is closed, or set HDF5_USE_FILE_LOCKING=FALSE if "
            "no process is, as on some network disks"
        )
    if "already open for" in reason:
        return (
            "was not closed by the process that wrote it: wait for its end; if it has ended, `h5clear -s` unlocks the "
            "file"
        )
    if isinstance(error, PermissionError):
        return "may not be read by you: ask for the permission to read it"
    with contextlib.suppress(OSError):
        beginning = path.open("rb").read(max(map(len, _OTHER_FORMATS)))
        for magic, words in _OTHER_FORMATS.items():
            if beginning.startswith(magic):
                return words
    return f"is truncated or not an HDF5 file: fetch it again ({reason})"


def _find(file: h5py.File, name: str) -> h5py.Dataset | None:
    """The array of this name; refuses links, which could open another file."""
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
    """Refuses an array that could read other files, or take more memory than its stored bytes allow."""
    if array.is_virtual or array.external:
        raise InputError(f"{where} keeps its values in other files: copy them into this one")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {array.dtype}; write it as numbers")
    _check_filters(where, array)
    stored = min(array.id.get_storage_size(), file_size)
    declared, filters = _declared_bytes(array), array.id.get_create_plist().get_nfilters()
    if declared > stored * (_MOST_PACKED if filters else 1) + _UNWRITTEN:
        raise InputError(f"{where} declares {declared:,} bytes but {stored:,} are stored for it: write it in full")
    if array.chunks is not None:
        _check_chunks(where, array, declared)


# The filters of the package hdf5plugin, by their numbers at the HDF Group
_PLUGINS = {
    307: "bzip2", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz",
    32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr",
}  # fmt: skip


def _check_filters(where: str, array: h5py.Dataset) -> None:
    """Refuses an array with a filter that is not installed; loads hdf5plugin's filters if necessary."""
    pipeline = array.id.get_create_plist()
    filters = [pipeline.get_filter(number) for number in range(pipeline.get_nfilters())]
    missing = [(code, name) for code, _, _, name in filters if not h5py.h5z.filter_avail(code)]
    if missing and any(code in _PLUGINS for code, _ in missing):
        with contextlib.suppress(ImportError):
            importlib.import_module("hdf5plugin")  # registers its filters
            missing = [(code, name) for code, name in missing if not h5py.h5z.filter_avail(code)]
    for code, name in missing:
        known = _PLUGINS.get(code)
        words = known or name.decode(errors="replace") or f"number {code}"
        help_ = "pip install hdf5plugin" if known else "install it, or write the file with gzip"
        raise InputError(f"{where} is packed by the HDF5 filter {words}, which is missing here: {help_}")


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
