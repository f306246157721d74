"""Keys that two draws share are found, however they are made."""

from collections.abc import Callable

import jax
import pytest

from parity_tests.ladder.draws import shares_a_key


def split(number: int = 4) -> jax.Array:
    """The keys of one step."""
    return jax.random.split(jax.random.fold_in(jax.random.key(2), 7), number)


def rows(key: jax.Array) -> jax.Array:
    """Whole numbers, for which JAX splits the key once more."""
    return jax.random.randint(key, (3,), 0, 9)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (lambda: jax.random.normal(split()[0]), lambda: jax.random.normal(split()[3]), False),
        (lambda: jax.random.normal(split()[0]), lambda: jax.random.normal(split()[0], (2,)), True),
        (lambda: rows(split()[1]), lambda: jax.random.normal(split()[1]), True),
        (lambda: jax.random.normal(split()[1]), lambda: rows(split()[1]), True),
        (lambda: rows(split()[-1]), lambda: jax.random.normal(split()[3]), True),
        # A longer split begins with the same keys.
        (lambda: jax.random.normal(split(5)[0]), lambda: jax.random.normal(split()[0]), True),
        (lambda: jax.vmap(jax.random.normal)(split()), lambda: jax.random.normal(split()[2]), True),
        (lambda: jax.random.normal(jax.random.key(2)), split, True),
    ],
)
def test_a_shared_key_is_found(one: Callable, other: Callable, shared: bool) -> None:
    assert shares_a_key(one, other) == shared
