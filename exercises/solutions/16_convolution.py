"""The same network in flax, which has the channels last, and its weights."""

from collections.abc import Mapping

import numpy as np
from flax import linen as nn
from jax import Array


class Net(nn.Module):
    """(B, 6, 8, 3) to (B, 2)."""

    def setup(self) -> None:
        """A convolution, and a linear layer for what it finds."""
        self.conv = nn.Conv(4, (3, 3), strides=2, padding=1)
        self.head = nn.Dense(2)

    def maps(self, images: Array) -> Array:
        """The feature maps (B, 3, 4, 4) of images (B, 6, 8, 3), channels last in both."""
        return nn.relu(self.conv(images))

    def outputs(self, maps: Array) -> Array:
        """The outputs (B, 2) for feature maps (B, 3, 4, 4)."""
        # As PyTorch flattens: channel by channel. The head's weights then need no other order.
        return self.head(maps.transpose(0, 3, 1, 2).reshape(len(maps), -1))

    def __call__(self, images: Array) -> Array:
        """The outputs (B, 2) for images (B, 6, 8, 3)."""
        return self.outputs(self.maps(images))


def transfer(weights: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """PyTorch's weights, `0.weight`, `0.bias`, `3.weight` and `3.bias`, as `Net`'s parameters."""
    return {
        "conv": {"kernel": weights["0.weight"].transpose(2, 3, 1, 0), "bias": weights["0.bias"]},
        "head": {"kernel": weights["3.weight"].T, "bias": weights["3.bias"]},
    }
