"""The same network in flax, and its weights."""

from collections.abc import Mapping

import numpy as np
from flax import linen as nn
from jax import Array


class Net(nn.Module):
    """(B, 8) to (B, 2)."""

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """The outputs (B, 2) for inputs (B, 8)."""
        hidden = nn.relu(nn.Dense(8)(inputs))
        return nn.Dense(2)(hidden)


def transfer(weights: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """PyTorch's weights, `0.weight`, `0.bias`, `2.weight` and `2.bias`, as `Net`'s parameters."""
    return {
        "Dense_0": {"kernel": weights["0.weight"], "bias": weights["0.bias"]},
        "Dense_1": {"kernel": weights["2.weight"], "bias": weights["2.bias"]},
    }
