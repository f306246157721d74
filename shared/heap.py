"""How the C library keeps memory that was freed, for programs that soon ask for as much again.

On a CPU, XLA takes the scratch memory of a compiled program in each call, and frees it after the call. From 32 MB on,
glibc has such a block from the kernel and returns it there. So the next call meets empty pages, and each page of 4 KB
costs a fault. An online step of CQL with CORL's settings needs 70 MB, which are 17,000 faults.

A scan of many updates asks once. So this is for loops that make a call in each step.
"""

import ctypes
import platform

# Options of `mallopt`, as in <malloc.h>, and its largest number
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1


def share_one_heap() -> None:
    """Has all threads allocate from one heap, since only the first one can keep large blocks.

    Threads that have allocated before keep their own. Does nothing where the C library is not glibc.
    """
    _set(_ARENA_MAX, 1)


def keep_freed_memory() -> None:
    """Keeps freed blocks of any size in the process from now on.

    Does nothing where the C library is not glibc.
    """
    _set(_MMAP_MAX, 0)
    _set(_TRIM_THRESHOLD, _NEVER)


def _set(option: int, value: int) -> None:
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(option, value)
