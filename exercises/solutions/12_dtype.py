"""The same in JAX: optax tells the schedule how many updates there were."""

import jax
import jax.numpy as jnp
import optax
from jax import Array

RATE, WARMUP = 0.1, 7


def rate(count: Array) -> Array:
    """The learning rate of the update that has `count` (int32) updates before it."""
    # With a decimal point the count is of the default type before it is divided.
    return RATE * jnp.minimum((count + 1.0) / WARMUP, 1.0)


SGD = optax.sgd(rate)


def descend(weights: Array, gradients: Array) -> Array:
    """The weights (W,) after a step along each of the gradients (N, W)."""

    def step(carry: tuple[Array, optax.OptState], gradient: Array) -> tuple[tuple[Array, optax.OptState], None]:
        weights, opt_state = carry
        change, opt_state = SGD.update(gradient, opt_state)
        return (optax.apply_updates(weights, change), opt_state), None

    (weights, _), _ = jax.lax.scan(step, (weights, SGD.init(weights)), gradients)
    return weights
