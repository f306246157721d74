"""Stores compiled programs on disk, so that later tests and the processes that they start can reuse them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest

from parity_tests.engine.caches import forget


def share_programs(factory: pytest.TempPathFactory) -> None:
    """Stores the programs of this session's tests in one folder, which is deleted with their other files.

    JAX keeps using the first folder that it gets, even if a training run sets another one later.
    """
    folder = str(factory.getbasetemp() / "compiled")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@contextmanager
def hardly_optimised() -> Iterator[None]:
    """Compiles programs faster but less optimised; rounding differs, and no program stays in memory afterwards."""
    forget()
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
        forget()
