"""Reads NumPy arrays from compressed streams that may be damaged or hostile.

A file of a few kilobytes can declare arrays of terabytes, so an array's declaration is checked before it is read.
Pickled objects are never read.
"""

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shared.data.hdf5 import MAX_BYTES
from shared.errors import InputError

_MOST_PACKED = 1100  # unpacked bytes per byte: deflate reaches 1032
_UNPACKED = 2**16  # bytes that a small file may declare
# What gzip, zipfile and NumPy raise on damaged files, depending on the position of the damage
_DAMAGE = (
    OSError, EOFError, ValueError, TypeError, KeyError, SyntaxError, OverflowError, MemoryError, RuntimeError,
    zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip


def read_array(file: Any, stored: int, where: str) -> np.ndarray:
    """Reads the array in a stream, after checking that its declared size fits the stored bytes and the memory.

    Args:
        file: The unpacked stream, which must be seekable.
        stored: The number of packed bytes.
        where: The prefix of error messages.

    Raises:
        InputError: The array declares more than the stream can contain.
    """
    shape, dtype = declared(file)
    size = math.prod(shape) * dtype.itemsize
    if size > MAX_BYTES:
        raise InputError(f"{where} declares {size:,} bytes, more than {MAX_BYTES:,}: fetch it again")
    if size > stored * _MOST_PACKED + _UNPACKED:
        raise InputError(f"{where} declares {size:,} bytes, and {stored:,} are stored for them: fetch it again")
    file.seek(0)
    array = np.lib.format.read_array(file, allow_pickle=False)
    # Reading to the end of the stream checks its checksum.
    if file.read(1):
        raise ValueError("bytes after the array")
    return array


def declared(file: Any) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and the type in the NumPy header at the beginning of a stream."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of NumPy's format")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    return shape, dtype


@contextmanager
def faults_of(path: Path, kind: str) -> Iterator[None]:
    """Reports a file's faults in the block in one line, which says what `kind` of file it should be.

    Raises:
        InputError: The block raised it, or an error that damaged files cause.
    """
    try:
        yield
    except InputError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path} is damaged, or {kind}: fetch it again ({reason})") from error
