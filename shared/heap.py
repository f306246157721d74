"""How the C library keeps memory that was freed, for programs that ask for the same sizes again and again.

XLA takes the scratch memory of a compiled program in each call on a CPU, and frees it after the call. From 32 MB on,
glibc gets such a block from the kernel and returns it there. The next call then meets empty pages, and each page costs a
fault of the processor. CQL's online step needs 70 MB: 17,000 faults, a quarter of the step's time.

A scan asks once for thousands of updates. So this is for loops that make a call for each step.
"""

import ctypes
import platform

# Options of `mallopt`, as in <malloc.h>
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1


def share_one_heap() -> None:
    """All threads allocate from one heap, as only one can keep large blocks; for threads that are not there yet.

    Does nothing where the C library is not glibc.
    """
    _set(_ARENA_MAX, 1)


def keep_freed_memory() -> None:
    """Freed blocks of any size stay in that heap from now on, so the process does not shrink any more.

    Does nothing where the C library is not glibc.
    """
    _set(_MMAP_MAX, 0)
    _set(_TRIM_THRESHOLD, _NEVER)


def _set(option: int, value: int) -> None:
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(option, value)
