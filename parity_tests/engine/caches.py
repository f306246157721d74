"""Frees the memory that the ladder, the checker and their tests use for caches."""

import contextlib
import ctypes
import gc
from functools import _lru_cache_wrapper

import jax

_ROOMS = ("parity_tests", "port_checker", "tests")


def forget() -> None:
    """Empties all caches in these packages, and drops every compiled program.

    Cached results keep hundreds of megabytes alive, and a few thousand programs exhaust the memory maps that Linux
    grants a process.
    """
    for cached in gc.get_objects():
        if type(cached) is _lru_cache_wrapper and cached.__module__.partition(".")[0] in _ROOMS:
            cached.cache_clear()
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        # glibc keeps freed memory, gigabytes of it after a thousand programs; other systems have no such call.
        ctypes.CDLL(None).malloc_trim(0)
