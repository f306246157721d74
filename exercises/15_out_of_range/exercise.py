"""The same in JAX, where a start is traced: no error, and no shorter slice."""

import jax
import jax.numpy as jnp
from jax import Array


def targets(rewards: Array, values: Array, discount: float) -> Array:
    """Each step's reward and the discounted value of the next step: (T,), for rewards and values (T,).

    The last step has no next one: its target is its reward.
    """
    steps = jnp.arange(len(rewards))
    return rewards + discount * values[steps + 1]


def window(states: Array, start: Array, length: int) -> Array:
    """The states (L, S) from `start` on, of an episode's (T, S), with rows of zeros where the episode has ended.

    This is what Decision Transformer learns from.
    """
    return jax.lax.dynamic_slice_in_dim(states, start, length)
