"""The encoders of images, in PyTorch. `shared/frameworks/jax_encoders.py` has the same names for JAX."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn, relu, sqrt, square
from torch.nn.functional import conv2d
from torch.nn.init import trunc_normal_, xavier_uniform_, zeros_

from shared.envs.spaces import Shape
from shared.frameworks import crops
from shared.runs.encoders import ENCODERS, Filter, Impala, ResNet, features, halved


class Pixels(nn.Module):
    """Scales bytes (B, C, H, W) to numbers from 0 to 1."""

    def forward(self, images: Tensor) -> Tensor:
        """Divides by 255, which happens nowhere else."""
        return images.to(torch.get_default_dtype()) / 255.0


def crop(images: Tensor, offsets: Tensor, padding: int) -> Tensor:
    """Shifts images by at most `padding` pixels, at constant size; pixels from outside repeat the nearest edge.

    Args:
        images: (B, C, H, W). All channels of an image, and therefore all its frames, have the same shift.
        offsets: (B, 2), row and column where each crop begins in the padded image, from 0 to 2 * padding.
        padding: Pixels on each side.
    """
    each, channels, height, width = (torch.arange(size, device=images.device) for size in images.shape)
    first = offsets[:, :, None] - padding
    rows = (first[:, 0] + height).clamp(0, len(height) - 1)
    columns = (first[:, 1] + width).clamp(0, len(width) - 1)
    return images[each[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None]]


# Layers that map batches to batches
cropped = partial(crops.cropped, crop)


def convolutions(name: str, shape: Shape) -> tuple[Sequence[nn.Module], int]:
    """The layers of an encoder and the number of its features; no layers for vectors.

    Args:
        name: The name of the encoder.
        shape: The shape of an observation: S or (C, H, W).

    Raises:
        InputError: The encoder cannot read such observations.
    """
    width = features(name, shape)
    if isinstance(shape, int):
        return [], width
    facts = ENCODERS[name]
    if isinstance(facts, Impala):
        layers = _impala(facts, *shape)
    elif isinstance(facts, ResNet):
        layers = _resnet(facts, shape[0])
    else:
        layers = _filters(facts, shape[0])
        # The same draw as d3rlpy, which counts features by trying its layers on a random image
        torch.rand(1, *shape)
    return [Pixels(), *layers], width


def _filters(facts: Sequence[Filter], inputs: int) -> Sequence[nn.Module]:
    layers: list[nn.Module] = []
    for channels, kernel, stride in facts:
        layers += [nn.Conv2d(inputs, channels, kernel, stride), nn.ReLU()]
        inputs = channels
    return [*layers, nn.Flatten()]


# ---- IMPALA --------------------------------------------------------------------------------------------------------


class Same(nn.Conv2d):
    """A 3 by 3 convolution that keeps the image's size, with Glorot-uniform kernels and zero biases."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)
        assert self.bias is not None, "a convolution has one by default"
        xavier_uniform_(self.weight)
        zeros_(self.bias)


class Pool(nn.Module):
    """The maximum over 3 by 3 pixels with a stride of 2; pixels outside the image never win."""

    def __init__(self, *padding: int) -> None:
        """Sets the number of outside pixels on the left, right, top and bottom."""
        super().__init__()
        self.pad = nn.ConstantPad2d((*padding,), -torch.inf)
        self.pool = nn.MaxPool2d(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (B, C, H, W) to (B, C, H', W')."""
        return self.pool(self.pad(images))


class Block(nn.Module):
    """A residual block of IMPALA."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolved = nn.Sequential(nn.ReLU(), Same(channels, channels), nn.ReLU(), Same(channels, channels))

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (B, C, H, W) to images of the same shape."""
        return images + self.convolved(images)


def _impala(facts: Impala, inputs: int, height: int, width: int) -> Sequence[nn.Module]:
    layers: list[nn.Module] = []
    for channels in facts.channels:
        # The last window reaches beyond the image; if the side is odd, the first does too.
        pool = Pool(width % 2, 1, height % 2, 1)
        layers += [Same(inputs, channels), pool, *(Block(channels) for _ in range(facts.blocks))]
        inputs, height, width = channels, halved(height), halved(width)
    return [*layers, nn.ReLU(), nn.Flatten()]


# ---- ResNet --------------------------------------------------------------------------------------------------------


class Standardised(nn.Conv2d):
    """A convolution without a bias, whose kernels are standardised to mean 0 and standard deviation 1 at each use.

    The trained weights are initialised from a normal distribution of variance 1 / fan-in, cut at two standard
    deviations.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        # A normal distribution that is cut at two standard deviations has a standard deviation of 0.88.
        deviation = (inputs * kernel**2) ** -0.5 / 0.87962566103423978
        trunc_normal_(self.weight, std=deviation, a=-2.0 * deviation, b=2.0 * deviation)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (B, C, H, W) to (B, outputs, H', W'); each output's kernel is standardised separately."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        kernel = centred / sqrt(square(centred).mean((1, 2, 3), keepdim=True) + 1e-10)
        return conv2d(images, kernel, None, self.stride, self.padding)


class Unit(nn.Module):
    """A pre-activation residual unit: normalisation and activation, then narrow, 3 by 3 and wide convolutions."""

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.norm = nn.GroupNorm(groups, inputs)
        self.convolved = nn.Sequential(
            Standardised(inputs, width, 1),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
            Standardised(width, width, 3, stride),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
            Standardised(width, outputs, 1),
        )
        changes = inputs != outputs or stride != 1
        self.projection = Standardised(inputs, outputs, 1, stride) if changes else None

    def forward(self, images: Tensor) -> Tensor:
        """Maps (B, inputs, H, W) to (B, 4 * width, H', W'); a projection reads the activated input."""
        activated = relu(self.norm(images))
        residual = images if self.projection is None else self.projection(activated)
        return residual + self.convolved(activated)


class Average(nn.Module):
    """Averages each channel's pixels."""

    def forward(self, images: Tensor) -> Tensor:
        """Maps (B, C, H, W) to (B, C)."""
        return images.mean((2, 3))


def _resnet(facts: ResNet, inputs: int) -> Sequence[nn.Module]:
    layers: list[nn.Module] = [Standardised(inputs, facts.width, 7, 2), Pool(1, 1, 1, 1)]
    inputs = facts.width
    for width, stride in facts.stages:
        layers.append(Unit(inputs, width, stride, facts.groups))
        inputs = 4 * width
    return [*layers, nn.GroupNorm(facts.groups, inputs), nn.ReLU(), Average()]
