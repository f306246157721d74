"""A key that is used twice."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from lessons import cloning
from lessons.measured import Error, Figure

PYTORCH = "a generator advances with each draw"
JAX = "a key is a value: the same key, the same draw"
SHOWS = "noise that should be independent is equal; with one key for all updates, one batch is memorised"


def reference(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size), torch.randn(size)


def wrong(key: Array, size: int) -> tuple[Array, Array]:
    return jax.random.normal(key, (size,)), jax.random.normal(key, (size,))


def right(key: Array, size: int) -> tuple[Array, Array]:
    first, second = jax.random.split(key)
    return jax.random.normal(first, (size,)), jax.random.normal(second, (size,))


def _indices(of_step: Callable[[Array], Array]) -> Array:
    """The batches' rows of all updates, each drawn by a key of its step."""
    size = (cloning.BATCH_SIZE,), 0, len(cloning.rows().rewards)
    return jax.vmap(lambda step: jax.random.randint(of_step(step), *size))(jnp.arange(cloning.UPDATES))


def measure() -> list[Error | Figure]:
    key = jax.random.key(0)
    wrongly, rightly = (abs(float(np.corrcoef(*way(key, 100_000))[0, 1])) for way in (wrong, right))
    indices = [_indices(lambda step: key), _indices(lambda step: jax.random.fold_in(key, step))]
    inputs = [cloning.Batch(*(column[i] for column in cloning.rows())) for i in indices]
    return [
        Error("correlation of two noises", wrongly, rightly, 0.02),
        Figure(f"different rows seen in {cloning.UPDATES} updates", *(float(len(np.unique(i))) for i in indices)),
        Figure("error of a cloned policy on all rows", *(cloning.cloned(inputs=batch) for batch in inputs)),
    ]
