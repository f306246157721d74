"""Convolutions that read images, in JAX. `shared/frameworks/torch_encoders.py` holds the same names for PyTorch.

Images have their channels first, as PyTorch's have. Flax's own convolutions want channels last. What follows would
then be flattened in another order, and the next layer's weights would have to be reordered between the frameworks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.nn.initializers import Initializer, glorot_uniform, lecun_normal, ones, variance_scaling, zeros
from jax.numpy import sqrt, square

from shared.frameworks import crops
from shared.frameworks.jax_layers import torch_bias
from shared.runs.encoders import ENCODERS, NO_ENCODER, Filter, Impala, ResNet

Layers = Sequence[Callable]


def convolve(images: Array, kernel: Array, stride: int = 1, padding: int = 0) -> Array:
    """Images (B, in, H, W) by a kernel (height, width, in, out), with black pixels around them.

    On processors they are one matrix product, since XLA's convolution is many times slower there within a loop. An
    interval of a run is such a loop.
    """
    on_cpu, elsewhere = (partial(form, stride=stride, padding=padding) for form in (as_product, as_convolution))
    return jax.lax.platform_dependent(images, kernel, cpu=on_cpu, default=elsewhere)


def as_convolution(images: Array, kernel: Array, stride: int, padding: int) -> Array:
    """`convolve` by XLA's own operation."""
    strides, sides, layout = (stride, stride), [(padding, padding)] * 2, ("NCHW", "HWIO", "NCHW")
    return jax.lax.conv_general_dilated(images, kernel, strides, sides, dimension_numbers=layout)


def as_product(images: Array, kernel: Array, stride: int, padding: int) -> Array:
    """`convolve` as a product: each output's pixels in a row, (B * H' * W', height * width * in), times the kernel.

    It multiplies two matrices, since XLA is slower within a loop if the left side has more axes.
    """
    images = jnp.pad(images.transpose(0, 2, 3, 1), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    sides = kernel.shape[:2]
    rows, columns = ((size - side) // stride + 1 for size, side in zip(images.shape[1:3], sides, strict=True))
    if all(side % stride == 0 for side in sides):
        height, width = ((count - 1) * stride + side for count, side in zip((rows, columns), sides, strict=True))
        images = jax.vmap(squares, (0, None))(images[:, :height, :width], stride)
        kernel, stride = squares(kernel, stride), 1
    height, width, inputs, outputs = kernel.shape
    seen = [
        images[:, row : row + stride * rows : stride, column : column + stride * columns : stride]
        for row in range(height)
        for column in range(width)
    ]
    left = jnp.concatenate(seen, axis=-1).reshape(-1, height * width * inputs)
    product = left @ kernel.reshape(height * width * inputs, outputs)
    return product.reshape(-1, rows, columns, outputs).transpose(0, 3, 1, 2)


def squares(image: Array, side: int) -> Array:
    """Squares of pixels as pixels of more channels: (H, W, C, ...) to (H / side, W / side, side * side * C, ...).

    A convolution whose stride is `side` then moves by one pixel. It reads fewer and larger pieces.
    """
    height, width, channels, *others = image.shape
    split = image.reshape(height // side, side, width // side, side, channels, *others).swapaxes(1, 2)
    return split.reshape(height // side, width // side, side * side * channels, *others)


class Conv(nn.Module):
    """`torch.nn.Conv2d`, with PyTorch's initialisation.

    The kernel is (height, width, in, out), as flax has it; PyTorch's weight is (out, in, height, width).
    """

    features: int
    kernel: int
    stride: int = 1
    # Black pixels on each side
    padding: int = 0
    kernel_init: Initializer = variance_scaling(1 / 3, "fan_in", "uniform")
    bias_init: Initializer | None = None

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Maps (B, C, H, W) to (B, features, H', W')."""
        channels, sides = images.shape[1], (self.kernel, self.kernel)
        kernel = self.param("kernel", self.kernel_init, (*sides, channels, self.features), images.dtype)
        bias_init = self.bias_init or torch_bias(channels * self.kernel**2)
        bias = self.param("bias", bias_init, (self.features,), images.dtype)
        return convolve(images, kernel, self.stride, self.padding) + bias[:, None, None]


def pixels(images: Array) -> Array:
    """Bytes (B, C, H, W) as numbers from 0 to 1."""
    return jnp.asarray(images, dtype=float) / 255.0


def flatten(images: Array) -> Array:
    """Features (B, C * H * W), channel by channel."""
    return images.reshape(len(images), -1)


def crop(images: Array, offsets: Array, padding: int) -> Array:
    """Images as large as they were, moved by `padding` pixels at most; what is outside repeats the nearest pixel.

    Args:
        images: (B, C, H, W). All channels of an image, and so all its frames, move alike.
        offsets: Row and column, (B, 2), from 0 to 2 * padding, where each begins in the padded one.
        padding: Pixels on each side.
    """
    each, channels, height, width = map(jnp.arange, images.shape)
    first = offsets[:, :, None] - padding
    rows = (first[:, 0] + height).clip(0, len(height) - 1)
    columns = (first[:, 1] + width).clip(0, len(width) - 1)
    return images[each[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None]]


# Of batches
cropped = partial(crops.cropped, crop)


def convolutions(name: str) -> Layers:
    """An encoder's layers, which come before the hidden layers; none for vectors."""
    if name == NO_ENCODER:
        return []
    facts = ENCODERS[name]
    if isinstance(facts, Impala):
        return [pixels, *_impala(facts)]
    return [pixels, *(_resnet(facts) if isinstance(facts, ResNet) else _filters(facts))]


def _filters(facts: Sequence[Filter]) -> Layers:
    return [*(layer for each in facts for layer in (Conv(*each), nn.relu)), flatten]


# ---- IMPALA --------------------------------------------------------------------------------------------------------


# One object: modules are equal, and compiled once, if their initialisers are the same.
GLOROT = glorot_uniform()


def same(channels: int) -> Conv:
    """Convolutions of 3 by 3 that keep the image's size; the kernels Glorot-uniform, the biases 0."""
    return Conv(channels, 3, padding=1, kernel_init=GLOROT, bias_init=zeros)


def pool(images: Array, padding: Any = "SAME") -> Array:
    """The maximum over 3 by 3 pixels with a stride of 2; pixels outside the image never count.

    With `SAME` the windows begin outside the image if its side is odd, and all end outside. PyTorch's twin counts that.
    """
    return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), padding)


def centred_pool(images: Array) -> Array:
    """As `pool`, but the first window begins outside the image whatever its side."""
    return pool(images, [(0, 0), (0, 0), (1, 1), (1, 1)])


class Block(nn.Module):
    """A residual block of IMPALA's."""

    channels: int

    def setup(self) -> None:
        """Two convolutions."""
        self.convolved = nn.Sequential([nn.relu, same(self.channels), nn.relu, same(self.channels)])

    def __call__(self, images: Array) -> Array:
        """Images (B, C, H, W) to images of the same shape."""
        return images + self.convolved(images)


def _impala(facts: Impala) -> Layers:
    layers: list[Callable] = []
    for channels in facts.channels:
        layers += [same(channels), pool, *(Block(channels) for _ in range(facts.blocks))]
    return [*layers, nn.relu, flatten]


# ---- ResNet --------------------------------------------------------------------------------------------------------


class Standardised(nn.Module):
    """Convolutions without a bias, whose kernels have mean 0 and deviation 1 at each use.

    The weights that are trained are drawn from a normal distribution of variance 1 / fan-in, cut at two deviations.
    """

    features: int
    kernel: int
    stride: int = 1

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Maps (B, C, H, W) to (B, features, H', W'), each output's kernel standardised by itself."""
        shape = self.kernel, self.kernel, images.shape[1], self.features
        weight = self.param("kernel", lecun_normal(), shape, images.dtype)
        centred = weight - weight.mean(axis=(0, 1, 2))
        kernel = centred / sqrt(square(centred).mean(axis=(0, 1, 2)) + 1e-10)
        return convolve(images, kernel, self.stride, self.kernel // 2)


class GroupNorm(nn.Module):
    """`torch.nn.GroupNorm`: in each image, the pixels of a group of channels get mean 0 and deviation 1."""

    groups: int

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Images (B, C, H, W) to images of the same shape, each channel with a scale and a bias."""
        scale, bias = (
            self.param(*each, images.shape[1:2], images.dtype) for each in (("scale", ones), ("bias", zeros))
        )
        grouped = images.reshape(len(images), self.groups, -1)
        centred = grouped - grouped.mean(axis=-1, keepdims=True)
        normalised = centred / sqrt(square(centred).mean(axis=-1, keepdims=True) + 1e-5)
        return normalised.reshape(images.shape) * scale[:, None, None] + bias[:, None, None]


class Unit(nn.Module):
    """A residual unit: normalised and activated first, then narrow, 3 by 3, and wide again."""

    inputs: int
    width: int
    stride: int
    groups: int

    def setup(self) -> None:
        """Three convolutions, and one for the residual where its shape must change."""
        outputs = 4 * self.width
        self.norm = GroupNorm(self.groups)
        self.convolved = nn.Sequential(
            [
                Standardised(self.width, 1),
                GroupNorm(self.groups),
                nn.relu,
                Standardised(self.width, 3, self.stride),
                GroupNorm(self.groups),
                nn.relu,
                Standardised(outputs, 1),
            ]
        )
        changes = self.inputs != outputs or self.stride != 1
        self.projection = Standardised(outputs, 1, self.stride) if changes else None

    def __call__(self, images: Array) -> Array:
        """Maps (B, inputs, H, W) to (B, 4 * width, H', W'); a projection takes what is activated already."""
        activated = nn.relu(self.norm(images))
        residual = images if self.projection is None else self.projection(activated)
        return residual + self.convolved(activated)


def average(images: Array) -> Array:
    """The mean of each channel's pixels, (B, C) of images (B, C, H, W)."""
    return images.mean(axis=(2, 3))


def _resnet(facts: ResNet) -> Layers:
    layers: list[Callable] = [Standardised(facts.width, 7, 2), centred_pool]
    inputs = facts.width
    for width, stride in facts.stages:
        layers.append(Unit(inputs, width, stride, facts.groups))
        inputs = 4 * width
    return [*layers, GroupNorm(facts.groups), nn.relu, average]
