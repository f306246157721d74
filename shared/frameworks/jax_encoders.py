"""Convolutions that read images, in JAX. `shared/frameworks/torch_encoders.py` holds the same names for PyTorch.

Images have their channels first, as PyTorch's have. Flax's own convolutions want channels last. What follows would
then be flattened in another order, and the next layer's weights would have to be reordered between the frameworks.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.nn.initializers import Initializer, variance_scaling

from shared.frameworks.jax_layers import torch_bias
from shared.runs.encoders import FILTERS, NO_ENCODER


class Conv(nn.Module):
    """`torch.nn.Conv2d` without padding, with PyTorch's initialisation.

    The kernel is (height, width, in, out), as flax has it; PyTorch's weight is (out, in, height, width).
    """

    features: int
    kernel: int
    stride: int
    kernel_init: Initializer = variance_scaling(1 / 3, "fan_in", "uniform")

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Maps (B, C, H, W) to (B, features, H', W')."""
        channels, sides = images.shape[1], (self.kernel, self.kernel)
        kernel = self.param("kernel", self.kernel_init, (*sides, channels, self.features), images.dtype)
        bias = self.param("bias", torch_bias(channels * self.kernel**2), (self.features,), images.dtype)
        strides, layout = (self.stride, self.stride), ("NCHW", "HWIO", "NCHW")
        convolved = jax.lax.conv_general_dilated(images, kernel, strides, "VALID", dimension_numbers=layout)
        return convolved + bias[:, None, None]


def pixels(images: Array) -> Array:
    """Bytes (B, C, H, W) as numbers from 0 to 1."""
    return jnp.asarray(images, dtype=float) / 255.0


def flatten(images: Array) -> Array:
    """Features (B, C * H * W), channel by channel."""
    return images.reshape(len(images), -1)


def convolutions(name: str) -> Sequence[Callable]:
    """An encoder's layers, which come before the hidden layers; none for vectors."""
    if name == NO_ENCODER:
        return []
    return [pixels, *(layer for each in FILTERS[name] for layer in (Conv(*each), nn.relu)), flatten]
