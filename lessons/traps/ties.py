"""The gradient of a minimum over an axis, at a tie."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array
from torch import Tensor

from lessons import cloning
from lessons.measured import Error, Figure
from lessons.traps.compare import gradient_distances
from shared.data.transitions import Batch

PYTORCH = "to one of the equal entries"
JAX = "divided among them"
SHOWS = "critics that start as copies and learn through their minimum remain copies: an ensemble of one"


def reference(q: Tensor) -> Tensor:
    return q.min(dim=0).values


def wrong(q: Array) -> Array:
    return q.min(axis=0)


def right(q: Array) -> Array:
    return jnp.take_along_axis(q, q.argmin(axis=0, keepdims=True), axis=0)[0]


def _distance_between_copies(least: Callable[..., Array]) -> float:
    """How far two critics part that start as copies and fit the rewards by the least of their values."""

    def values(critics: list, batch: Batch) -> Array:
        inputs = jnp.concatenate([batch.observations, batch.actions], axis=-1)
        return jnp.stack([cloning.network(critic, inputs)[:, 0] for critic in critics])

    def loss(critics: list, batch: Batch) -> Array:
        q = least(values(critics, batch))
        assert q.shape == batch.rewards.shape
        return jnp.square(q - batch.rewards).mean()

    critic = cloning.fresh((14, cloning.WIDTH, 1))
    first, second = values(cloning.fit([critic, critic], cloning.batches(), loss), cloning.rows())
    return float(jnp.abs(first - second).mean())


def measure() -> list[Error | Figure]:
    tied, apart = np.ones((2, 5)), np.random.default_rng(0).normal(size=(2, 5))
    return [
        gradient_distances("gradient at a tie", reference, wrong, right, tied),
        Figure("gradient elsewhere", *gradient_distances("", reference, wrong, right, apart)[1:3]),
        Figure("mean distance of two critics that start as copies", *map(_distance_between_copies, (wrong, right))),
    ]
