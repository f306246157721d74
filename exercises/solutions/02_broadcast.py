"""A critic's regression to its target, in JAX."""

import jax.numpy as jnp
from jax import Array


def critic_loss(values: Array, rewards: Array, next_values: Array, discount: float) -> Array:
    """The squared error of values (B, 1), as a last layer gives them; rewards (B,) and next values (B, 1)."""
    values, next_values = values.squeeze(-1), next_values.squeeze(-1)
    target = rewards + discount * next_values
    # Where every number of a row is (B,), nothing broadcasts; say so where it could come back.
    assert values.shape == target.shape == rewards.shape
    return jnp.square(values - target).mean()
