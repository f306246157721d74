"""The library that multiplies, as seen in the compiled program."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shared.frameworks import jax_products
from shared.frameworks.jax_products import EigenProgram, eigen_alone

ONES = jnp.ones((256, 256))


def square(matrix: jax.Array, times: int) -> jax.Array:
    """A chain of plain products."""
    for _ in range(times):
        matrix = matrix @ matrix / 256.0
    return matrix


def compiled(program: Any) -> str:
    """XLA's text of the program."""
    return program.lower(ONES, times=2).compile().as_text()


@pytest.fixture
def no_option(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A jaxlib without this option."""
    monkeypatch.setattr(jax_products, "NONE_FOR_YNNPACK", {"xla_cpu_no_such_option": ""})
    eigen_alone.cache_clear()
    yield
    eigen_alone.cache_clear()


def test_no_product_goes_to_ynnpack() -> None:
    """By itself, this jaxlib would use it for both."""
    plain, ours = jax.jit(square, static_argnames="times"), EigenProgram(square, static_argnames="times")
    assert "ynn_fusion" in compiled(plain)
    assert "ynn_fusion" not in compiled(ours)
    np.testing.assert_allclose(ours(ONES, times=2), ONES)


def test_a_part_of_a_program_is_an_ordinary_part() -> None:
    """JAX refuses the option there."""
    ours = EigenProgram(square, static_argnames="times")
    several = jax.jit(jax.vmap(partial(ours, times=2)))
    np.testing.assert_allclose(several(ONES[None]), ONES[None])
    with pytest.raises(ValueError, match="compiler_options"):
        jax.jit(lambda matrix: ours.whole(matrix, times=2))(ONES)


@pytest.mark.usefixtures("no_option")
def test_a_jaxlib_without_the_option_compiles() -> None:
    ours = EigenProgram(square, static_argnames="times")
    assert eigen_alone() is None
    np.testing.assert_allclose(ours(ONES, times=2), ONES)


def test_its_state_is_given_up() -> None:
    """Donation and static names work as with `jax.jit`."""
    ours = EigenProgram(square, static_argnames="times", donate_argnames="matrix")
    given = jnp.ones((256, 256))
    ours(given, times=1).block_until_ready()
    assert given.is_deleted()
    assert ours.__name__ == "square"


def test_its_programs_are_counted() -> None:
    """One for each value of a static name."""
    ours = EigenProgram(square, static_argnames="times")
    for times in (1, 2, 2):
        ours(ONES, times=times)
    assert ours._cache_size() == 2
