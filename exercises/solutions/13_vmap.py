"""The same ensemble in JAX, all critics at once."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

# A critic's layers: ({"kernel": (in, out), "bias": (out,)}, ...)
Params = tuple[dict[str, Array], ...]


def value(critic: Params, states: Array, actions: Array) -> Array:
    """Q(s, a) under one critic: (B,), for states (B, S) and actions (B, A)."""
    hidden = jnp.concatenate([states, actions], axis=-1)
    for layer in critic[:-1]:
        hidden = jax.nn.relu(hidden @ layer["kernel"] + layer["bias"])
    return (hidden @ critic[-1]["kernel"] + critic[-1]["bias"]).squeeze(-1)


def stack(critics: Sequence[Params]) -> Params:
    """What `values` takes for E critics: one tree, whose leaves have a first axis of E."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *critics)


def values(critics: Params, states: Array, actions: Array) -> Array:
    """Q(s, a) under every critic: (E, B), for states (B, S) and actions (B, A); `critics` is what `stack` gives."""
    # Each critic sees every row: the batch is not mapped over.
    return jax.vmap(value, in_axes=(0, None, None))(critics, states, actions)
