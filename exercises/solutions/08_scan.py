"""The same in JAX: all draws first, then one scan."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array


def update(weights: Array, states: Array, rewards: Array) -> tuple[Array, Array]:
    """One step of gradient descent on a batch, states (B, S) and rewards (B,); the loss before it."""
    errors = states @ weights - rewards
    return weights - 0.1 * (errors[:, None] * states).mean(0), jnp.square(errors).mean()


def draw(key: Array, step: Array, batch_size: int, dataset_size: int) -> Array:
    """The indices (B,) of an update's batch."""
    return jax.random.randint(jax.random.fold_in(key, step), (batch_size,), 0, dataset_size)


@partial(jax.jit, static_argnames=("num_updates", "batch_size"))
def train(
    weights: Array, key: Array, states: Array, rewards: Array, num_updates: int, batch_size: int
) -> tuple[Array, Array]:
    """The weights after so many updates, on the batches that `draw` gives for their numbers, and the mean loss."""
    indices = jax.vmap(lambda step: draw(key, step, batch_size, len(rewards)))(jnp.arange(num_updates))

    def step(weights: Array, rows: Array) -> tuple[Array, Array]:
        return update(weights, states[rows], rewards[rows])

    weights, losses = jax.lax.scan(step, weights, indices)
    return weights, losses.mean()
