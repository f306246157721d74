"""Makes the C library keep freed memory, for programs that soon allocate as much again.

On a CPU, XLA allocates a compiled program's scratch memory in each call, and frees it afterwards. The library glibc
requests blocks of 32 MB or more from the kernel and returns them there. The next call therefore gets empty pages, and
each page of 4 KB costs a fault. An online step of CQL with CORL's settings needs 70 MB, that is, 17,000 faults.

A scan of many updates allocates only once, so this is for loops that make a call in each step.
"""

import ctypes
import platform

# Options of `mallopt` from <malloc.h>, and its largest number
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1


def share_one_heap() -> None:
    """Makes all threads allocate from one heap, because only the first one can keep large blocks.

    Threads that have already allocated keep their own heap. Does nothing if the C library is not glibc.
    """
    _set(_ARENA_MAX, 1)


def keep_freed_memory() -> None:
    """Keeps freed blocks of any size in the process from now on.

    Does nothing if the C library is not glibc.
    """
    _set(_MMAP_MAX, 0)
    _set(_TRIM_THRESHOLD, _NEVER)


def _set(option: int, value: int) -> None:
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(option, value)
