"""The encoders of images, in JAX. `shared/frameworks/torch_encoders.py` has the same names for PyTorch.

Images have their channels first, as in PyTorch. Flax's own convolutions want channels last, which would flatten the
features in another order. The next layer's weights would then have to be reordered between the frameworks.
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
    """Convolves images (B, in, H, W) with a kernel (height, width, in, out), after padding them with black pixels.

    On CPUs this is one matrix product, because XLA's convolution is many times slower there inside a loop, and an
    interval of a run is such a loop.
    """
    on_cpu, elsewhere = (partial(form, stride=stride, padding=padding) for form in (as_product, as_convolution))
    return jax.lax.platform_dependent(images, kernel, cpu=on_cpu, default=elsewhere)


def as_convolution(images: Array, kernel: Array, stride: int, padding: int) -> Array:
    """`convolve` by XLA's own convolution."""
    strides, sides, layout = (stride, stride), [(padding, padding)] * 2, ("NCHW", "HWIO", "NCHW")
    return jax.lax.conv_general_dilated(images, kernel, strides, sides, dimension_numbers=layout)


def as_product(images: Array, kernel: Array, stride: int, padding: int) -> Array:
    """`convolve` as a product: each output's pixels in a row, (B * H' * W', height * width * in), times the kernel.

    Both factors are matrices, because XLA is slower inside a loop if the left factor has more axes.
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
    """Rearranges squares of pixels to channels: (H, W, C, ...) to (H / side, W / side, side * side * C, ...).

    A convolution with stride `side` then has stride 1, and reads fewer but larger pieces.
    """
    height, width, channels, *others = image.shape
    split = image.reshape(height // side, side, width // side, side, channels, *others).swapaxes(1, 2)
    return split.reshape(height // side, width // side, side * side * channels, *others)


class Conv(nn.Module):
    """`torch.nn.Conv2d`, with PyTorch's initialisation.

    The kernel is (height, width, in, out), as in flax; PyTorch's weight is (out, in, height, width).
    """

    features: int
    kernel: int
    stride: int = 1
    # Black pixels on each side of the image
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
    """Scales bytes (B, C, H, W) to numbers from 0 to 1."""
    return jnp.asarray(images, dtype=float) / 255.0


def flatten(images: Array) -> Array:
    """Flattens images to features (B, C * H * W), channel by channel."""
    return images.reshape(len(images), -1)


def crop(images: Array, offsets: Array, padding: int) -> Array:
    """Shifts images by at most `padding` pixels, at constant size; pixels from outside repeat the nearest edge.

    Args:
        images: (B, C, H, W). All channels of an image, and therefore all its frames, have the same shift.
        offsets: (B, 2), row and column where each crop begins in the padded image, from 0 to 2 * padding.
        padding: Pixels on each side.
    """
    each, channels, height, width = map(jnp.arange, images.shape)
    first = offsets[:, :, None] - padding
    rows = (first[:, 0] + height).clip(0, len(height) - 1)
    columns = (first[:, 1] + width).clip(0, len(width) - 1)
    return images[each[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None]]


# Layers that map batches to batches
cropped = partial(crops.cropped, crop)


def convolutions(name: str) -> Layers:
    """The layers of an encoder, which come before the hidden layers; empty for vectors."""
    if name == NO_ENCODER:
        return []
    facts = ENCODERS[name]
    if isinstance(facts, Impala):
        return [pixels, *_impala(facts)]
    return [pixels, *(_resnet(facts) if isinstance(facts, ResNet) else _filters(facts))]


def _filters(facts: Sequence[Filter]) -> Layers:
    return [*(layer for each in facts for layer in (Conv(*each), nn.relu)), flatten]


# ---- IMPALA --------------------------------------------------------------------------------------------------------


# One shared object, because modules with equal initialisers are equal, and so are compiled only once.
GLOROT = glorot_uniform()


def same(channels: int) -> Conv:
    """A 3 by 3 convolution that keeps the image's size, with Glorot-uniform kernels and zero biases."""
    return Conv(channels, 3, padding=1, kernel_init=GLOROT, bias_init=zeros)


def pool(images: Array, padding: Any = "SAME") -> Array:
    """The maximum over 3 by 3 pixels with a stride of 2; pixels outside the image never win.

    With `SAME`, the last window ends outside the image, and the first begins outside it if the side is odd. PyTorch's
    twin has to compute this padding.
    """
    return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), padding)


def centred_pool(images: Array) -> Array:
    """Like `pool`, but the first window always begins outside the image."""
    return pool(images, [(0, 0), (0, 0), (1, 1), (1, 1)])


class Block(nn.Module):
    """A residual block of IMPALA."""

    channels: int

    def setup(self) -> None:
        """Creates two convolutions."""
        self.convolved = nn.Sequential([nn.relu, same(self.channels), nn.relu, same(self.channels)])

    def __call__(self, images: Array) -> Array:
        """Maps images (B, C, H, W) to images of the same shape."""
        return images + self.convolved(images)


def _impala(facts: Impala) -> Layers:
    layers: list[Callable] = []
    for channels in facts.channels:
        layers += [same(channels), pool, *(Block(channels) for _ in range(facts.blocks))]
    return [*layers, nn.relu, flatten]


# ---- ResNet --------------------------------------------------------------------------------------------------------


class Standardised(nn.Module):
    """A convolution without a bias, whose kernels are standardised to mean 0 and standard deviation 1 at each use.

    The trained weights are initialised from a normal distribution of variance 1 / fan-in, cut at two standard
    deviations.
    """

    features: int
    kernel: int
    stride: int = 1

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Maps (B, C, H, W) to (B, features, H', W'); each output's kernel is standardised separately."""
        shape = self.kernel, self.kernel, images.shape[1], self.features
        weight = self.param("kernel", lecun_normal(), shape, images.dtype)
        centred = weight - weight.mean(axis=(0, 1, 2))
        kernel = centred / sqrt(square(centred).mean(axis=(0, 1, 2)) + 1e-10)
        return convolve(images, kernel, self.stride, self.kernel // 2)


class GroupNorm(nn.Module):
    """`torch.nn.GroupNorm`: normalises the pixels of a group of channels to mean 0 and deviation 1 in each image."""

    groups: int

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Maps images (B, C, H, W) to images of the same shape; each channel has a scale and a bias."""
        scale, bias = (
            self.param(*each, images.shape[1:2], images.dtype) for each in (("scale", ones), ("bias", zeros))
        )
        grouped = images.reshape(len(images), self.groups, -1)
        centred = grouped - grouped.mean(axis=-1, keepdims=True)
        normalised = centred / sqrt(square(centred).mean(axis=-1, keepdims=True) + 1e-5)
        return normalised.reshape(images.shape) * scale[:, None, None] + bias[:, None, None]


class Unit(nn.Module):
    """A pre-activation residual unit: normalisation and activation, then narrow, 3 by 3 and wide convolutions."""

    inputs: int
    width: int
    stride: int
    groups: int

    def setup(self) -> None:
        """Creates three convolutions, and a projection for the residual if its shape changes."""
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
        """Maps (B, inputs, H, W) to (B, 4 * width, H', W'); a projection reads the activated input."""
        activated = nn.relu(self.norm(images))
        residual = images if self.projection is None else self.projection(activated)
        return residual + self.convolved(activated)


def average(images: Array) -> Array:
    """Averages each channel's pixels: (B, C, H, W) to (B, C)."""
    return images.mean(axis=(2, 3))


def _resnet(facts: ResNet) -> Layers:
    layers: list[Callable] = [Standardised(facts.width, 7, 2), centred_pool]
    inputs = facts.width
    for width, stride in facts.stages:
        layers.append(Unit(inputs, width, stride, facts.groups))
        inputs = 4 * width
    return [*layers, GroupNorm(facts.groups), nn.relu, average]
