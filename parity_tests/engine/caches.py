"""Frees the memory that the ladder, the checker and their tests use for caches."""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator
from functools import _lru_cache_wrapper

import jax

_ROOMS = ("parity_tests", "port_checker", "tests")


def forget() -> None:
    """Empties all caches in these packages, and drops every compiled program.

    Cached results keep hundreds of megabytes alive, and a few thousand programs exhaust the memory maps that Linux
    grants a process.
    """
    for cached in _caches():
        cached.cache_clear()
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        # glibc keeps freed memory, gigabytes of it after a thousand programs; other systems have no such call.
        ctypes.CDLL(None).malloc_trim(0)


def _caches() -> Iterator[_lru_cache_wrapper]:
    """Every cached function and method in these packages' modules."""
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in _ROOMS:
            kinds = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
            held = [value for holder in (module, *kinds) for value in vars(holder).values()]
            # A class method holds its function.
            for value in [getattr(value, "__func__", value) for value in held]:
                if isinstance(value, _lru_cache_wrapper):
                    yield value
