"""A pessimistic value under an ensemble of linear critics, in JAX."""

import jax.numpy as jnp
from jax import Array


def pessimistic_value(critics: Array, states: Array, beta: float) -> Array:
    """The ensemble's mean value less `beta` deviations, over all rows: a number, for critics (E, S) and states (B, S).

    Where all critics agree the deviation is 0, and its gradient should be 0.
    """
    q = states @ critics.T
    # PyTorch divides by E - 1.
    variance = q.var(-1, ddof=1)
    # The root never sees the 0: a `where` after it would multiply its infinite slope by 0.
    positive = jnp.where(variance > 0.0, variance, 1.0)
    deviation = jnp.where(variance > 0.0, jnp.sqrt(positive), 0.0)
    return (q.mean(-1) - beta * deviation).mean()
