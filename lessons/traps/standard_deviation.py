"""The divisor of `std`."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array
from torch import Tensor

from lessons.cloning import Params, cloned, network
from lessons.measured import Error, Figure
from lessons.traps.compare import distances
from shared.data.transitions import Batch

PYTORCH = "n - 1"
JAX = "n, like NumPy"
SHOWS = "nothing; weights by exp(advantage / deviation) are a little sharper"


def reference(values: Tensor) -> Tensor:
    return values / values.std()


def wrong(values: Array) -> Array:
    return values / values.std()


def right(values: Array) -> Array:
    return values / values.std(ddof=1)


def _weighted(scaled: Callable[..., Array]) -> Callable[..., Array]:
    """Behaviour cloning weighted by the exponential of rewards in units of their deviation in the batch."""

    def loss(params: Params, batch: Batch) -> Array:
        errors = jnp.square(jnp.tanh(network(params, batch.observations)) - batch.actions).mean(axis=-1)
        weights = jnp.exp(scaled(batch.rewards - batch.rewards.mean()))
        assert errors.shape == weights.shape
        return (weights * errors).mean()

    return loss


def measure() -> list[Error | Figure]:
    rng = np.random.default_rng(0)
    sizes = [distances(f"values, n = {n}", reference, wrong, right, rng.normal(size=n)) for n in (20, 256, 50_000)]
    policies = [cloned(_weighted(scaled)) for scaled in (wrong, right)]
    return [*sizes, Figure("error of a policy cloned with such weights", *policies)]
