"""The same in JAX; `train` calls a compiled update again and again, and asks the device for each loss."""

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


def train(
    weights: Array, key: Array, states: Array, rewards: Array, num_updates: int, batch_size: int
) -> tuple[Array, Array]:
    """The weights after so many updates, on the batches that `draw` gives for their numbers, and the mean loss."""
    losses = []
    for step in range(num_updates):
        rows = draw(key, step, batch_size, len(rewards))
        weights, loss = jax.jit(update)(weights, states[rows], rewards[rows])
        losses.append(float(loss))
    return weights, sum(losses) / len(losses)
