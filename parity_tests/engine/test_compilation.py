"""Compiled programs are stored and dropped as intended during the tests."""

import os
from pathlib import Path
from typing import Any

import jax
import pytest

from parity_tests.engine.compilation import hardly_optimised

SETTING = "jax_disable_most_optimizations"


def test_small_programs_are_kept_for_the_next_test(tmp_path_factory: pytest.TempPathFactory) -> None:
    """They are in this session's folder, never in the user's."""

    @jax.jit
    def heard_of_here_only(number: jax.Array) -> jax.Array:
        return number + 1.0

    heard_of_here_only(1.0)
    (program,) = tmp_path_factory.getbasetemp().glob("compiled/jit_heard_of_here_only*")
    assert program.parent == Path(os.environ["JAX_COMPILATION_CACHE_DIR"])


def test_haste_leaves_nothing_behind() -> None:
    """Neither the setting nor a program remains, even after an error."""
    double: Any = jax.jit(lambda number: 2.0 * number)

    def fail_in_haste() -> None:
        with hardly_optimised():
            assert jax.config.read(SETTING)
            double(1.0)
            assert double._cache_size() == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_haste()
    assert double._cache_size() == 0
    assert not jax.config.read(SETTING)
