"""A target network that follows its network, in JAX."""

from typing import Any

import jax
import jax.numpy as jnp

# Parameters by layer: {"Dense_0": {"kernel": ..., "bias": ...}, ...}
Params = dict[str, dict[str, Any]]


def make_target(params: Params) -> Params:
    """A copy of the parameters: a state that is donated to a compiled function may hold no array twice."""
    return jax.tree.map(jnp.copy, params)


def soft_update(target: Params, params: Params, tau: float) -> Params:
    """The target, a step of size tau nearer to the parameters: a new tree, whatever is in it."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, params)
