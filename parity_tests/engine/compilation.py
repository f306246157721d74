"""Compiled programs on disk: what one test has compiled the next one finds, and so do the processes that it starts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest

from parity_tests.engine.caches import forget


def share_programs(factory: pytest.TempPathFactory) -> None:
    """Keeps the programs of this session's tests in one folder, which goes with their other files.

    JAX stays with the first folder that it is given, whatever a training sets later.
    """
    folder = str(factory.getbasetemp() / "compiled")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@contextmanager
def hardly_optimised() -> Iterator[None]:
    """Programs of this time are compiled sooner and run more slowly; rounding differs, and none is kept in memory."""
    forget()
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
        forget()
