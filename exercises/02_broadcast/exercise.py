"""A critic's regression to its target, in JAX."""

import jax.numpy as jnp
from jax import Array


def critic_loss(values: Array, rewards: Array, next_values: Array, discount: float) -> Array:
    """The squared error of values (B, 1), as a last layer gives them; rewards (B,) and next values (B, 1)."""
    target = rewards + discount * next_values
    return jnp.square(values - target).mean()
