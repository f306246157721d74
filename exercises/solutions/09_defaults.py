"""The same pieces in flax, with PyTorch's defaults."""

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
        # flax's epsilon is 1e-6, and its GELU approximates by tanh.
        return nn.gelu(nn.LayerNorm(epsilon=1e-5)(inputs), approximate=False)


def deviation(log_std: Array) -> Array:
    """The standard deviation, its logarithm kept within [-20, 2]; at a bound its gradient is whole, as in PyTorch."""
    bounded = jnp.where(log_std < -20.0, -20.0, jnp.where(log_std > 2.0, 2.0, log_std))
    return jnp.exp(bounded)


# How a kernel is initialised where PyTorch would make a torch.nn.Linear: U(-1/sqrt(fan_in), 1/sqrt(fan_in))
KERNEL_INIT: Initializer = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
