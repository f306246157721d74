"""A column against a row."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array
from torch import Tensor

from lessons import cloning
from lessons.measured import Error, Figure
from lessons.traps.compare import distances, gradient_distances
from shared.data.transitions import Batch

PYTORCH = "`(B, 1) - (B,)` is `(B, B)`, silently"
JAX = "the same"
SHOWS = "a critic that doesn't explain the rewards at all"


def reference(q: Tensor, target: Tensor) -> Tensor:
    return (q.squeeze(-1) - target).square().mean()


def wrong(q: Array, target: Array) -> Array:
    return jnp.square(q - target).mean()


def right(q: Array, target: Array) -> Array:
    q = q.squeeze(-1)
    assert q.shape == target.shape
    return jnp.square(q - target).mean()


def _explained(regression: Callable[..., Array]) -> float:
    """The share of the rewards' variance that a critic of immediate rewards explains after its training."""

    def values(critic: cloning.Params, batch: Batch) -> Array:
        return cloning.network(critic, jnp.concatenate([batch.observations, batch.actions], axis=-1))

    def loss(critic: cloning.Params, batch: Batch) -> Array:
        return regression(values(critic, batch), batch.rewards)

    rows = cloning.rows()
    critic = cloning.fit(cloning.fresh((14, cloning.WIDTH, cloning.WIDTH, 1)), cloning.batches(), loss)
    return float(1.0 - (values(critic, rows)[:, 0] - rows.rewards).var() / rows.rewards.var())


def measure() -> list[Error | Figure]:
    rng = np.random.default_rng(0)
    target = rng.normal(size=256)
    q = target[:, None] + 0.1 * rng.normal(size=(256, 1))
    return [
        distances("loss of a critic that is nearly right", reference, wrong, right, q, target),
        gradient_distances("gradient", reference, wrong, right, q, target),
        Figure("share of the rewards' variance that a critic explains", *map(_explained, (wrong, right))),
    ]
