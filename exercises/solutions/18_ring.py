"""The same in JAX: a value that a compiled function takes and returns."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Ring(NamedTuple):
    """Rows (C, W), of which the first `size` are stored; the next one is written to `pointer`."""

    rows: Array
    size: Array
    pointer: Array


def create(capacity: int, width: int) -> Ring:
    """An empty ring."""
    return Ring(jnp.zeros((capacity, width)), jnp.asarray(0), jnp.asarray(0))


def push(ring: Ring, rows: Array) -> Ring:
    """Stores rows (n, W), the oldest first; n is at most C."""
    capacity = len(ring.rows)
    # Not a slice: one that extends past the end would be moved back.
    stored = ring.rows.at[(ring.pointer + jnp.arange(len(rows))) % capacity].set(rows)
    size, pointer = jnp.minimum(ring.size + len(rows), capacity), (ring.pointer + len(rows)) % capacity
    return Ring(stored, size, pointer)


def sample(ring: Ring, key: Array, batch_size: int) -> Array:
    """Rows (B, W), each with the same probability, drawn with replacement."""
    return ring.rows[jax.random.randint(key, (batch_size,), 0, ring.size)]
