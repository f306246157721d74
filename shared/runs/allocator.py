"""What glibc does with memory that was freed; elsewhere nothing of this has an effect.

A call of XLA's takes one block for all that it computes in between, tens of megabytes for CQL's. By default glibc
returns so large a block to the system after each call. The next call then faults in every page of it anew.
"""

import contextlib
import ctypes

# The numbers of malloc.h, and the largest value that fits
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_LARGEST = 2**31 - 1


def share_one_arena() -> None:
    """Has threads that begin from now on allocate from one heap, where each would have one of its own.

    A heap that is not the first cannot hold a large block. So this comes before `keep_freed_memory`, and before any
    package begins its threads. A process of several threads is also smaller so.
    """
    _set(_ARENA_MAX, 1)


def keep_freed_memory() -> None:
    """Has the process keep what it frees, and reuse it, up to two gigabytes."""
    _set(_MMAP_MAX, 0)
    _set(_TRIM_THRESHOLD, _LARGEST)


def _set(parameter: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(parameter, value)
