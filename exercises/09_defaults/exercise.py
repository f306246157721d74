"""The same pieces in flax, with flax's and JAX's defaults."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.nn.initializers import Initializer


class Block(nn.Module):
    """LayerNorm over the last axis, then GELU: (B, W) to (B, W)."""

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """The outputs (B, W) for inputs (B, W)."""
        return nn.gelu(nn.LayerNorm()(inputs))


def deviation(log_std: Array) -> Array:
    """The standard deviation, its logarithm kept within [-20, 2]."""
    return jnp.exp(jnp.clip(log_std, -20.0, 2.0))


# How a kernel is initialised where PyTorch would make a torch.nn.Linear
KERNEL_INIT: Initializer = jax.nn.initializers.lecun_normal()
