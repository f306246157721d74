"""TD3+BC's policy loss in JAX, for a linear policy under a linear critic."""

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient


def actor_loss(policy: Array, critic: Array, states: Array, actions: Array, alpha: float) -> Array:
    """The value of the policy's actions, scaled by its own size, against the distance to the data's actions.

    Policy (S, A), critic (S + A,), states (B, S), actions (B, A).
    """
    chosen = jnp.tanh(states @ policy)
    q = jnp.concatenate([states, chosen], axis=-1) @ critic
    weight = alpha / stop_gradient(jnp.abs(q).mean())
    return -weight * q.mean() + jnp.square(chosen - actions).mean()
