"""The encoders of images, by name; both frameworks build their networks from these facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from shared.envs.spaces import Shape
from shared.errors import InputError

NO_ENCODER = "none"
"""The name for vector observations, which go into the hidden layers unchanged."""


class Filter(NamedTuple):
    """A convolutional layer: number of channels, side of the square kernels, and stride."""

    channels: int
    kernel: int
    stride: int


FILTERS: Mapping[str, Sequence[Filter]] = {
    # Mnih et al., Human-level control through deep reinforcement learning, 2015, for images of 84 by 84
    "nature": (Filter(32, 8, 4), Filter(64, 4, 2), Filter(64, 3, 1)),
    # Young and Tian, MinAtar, 2019, https://arxiv.org/abs/1903.03176, for images of 10 by 10
    "minatar": (Filter(16, 3, 1),),
}
"""Plain convolutional encoders, as in d3rlpy: no padding, and a ReLU after each layer."""


@dataclass(frozen=True)
class Impala:
    """Stacks of a convolution, pooling that halves the image, and residual blocks.

    Espeholt et al., IMPALA, 2018, https://arxiv.org/abs/1802.01561, as in jaxrl_m.

    Attributes:
        channels: Channels of each stack.
        blocks: Residual blocks in each stack, with two convolutions each.
    """

    channels: Sequence[int] = (16, 32, 32)
    blocks: int = 2


@dataclass(frozen=True)
class ResNet:
    """Residual units after a 7 by 7 convolution, with group normalization and standardized kernels.

    He et al., Identity Mappings in Deep Residual Networks, 2016, https://arxiv.org/abs/1603.05027. Kolesnikov et al.,
    Big Transfer, 2019, https://arxiv.org/abs/1912.11370, as in jaxrl_m's `resnetv2-26-1`.

    Attributes:
        width: Channels of the first convolution. Each stage after the first doubles the channels inside its units.
        units: Residual units in each stage. A unit outputs four times the channels that it has inside.
        groups: Number of groups for group normalization.
    """

    width: int = 64
    units: Sequence[int] = (2, 2, 2, 2)
    groups: int = 32

    @property
    def stages(self) -> Sequence[tuple[int, int]]:
        """Inner channels and stride of each unit; the stride is 2 at the start of each stage after the first."""
        numbered = [(stage, unit) for stage, units in enumerate(self.units) for unit in range(units)]
        return [(self.width * 2**stage, 2 if stage and not unit else 1) for stage, unit in numbered]


ENCODERS: dict[str, Sequence[Filter] | Impala | ResNet] = {**FILTERS, "impala": Impala(), "resnet": ResNet()}
"""The available encoders. None keeps batch statistics, so a policy acts as it was trained."""


def halved(size: int) -> int:
    """The side of an image after a layer with stride 2 that covers the whole image."""
    return ceil(size / 2)


def features(encoder: str, shape: Shape, what: str = "observations") -> int:
    """Returns how many features an encoder computes from an observation.

    Args:
        encoder: The name of the encoder.
        shape: The shape of an observation.
        what: A description of the observations, for the message.

    Raises:
        InputError: They are images without an encoder, vectors with one, or images smaller than a kernel.
    """
    if isinstance(shape, int):
        if encoder != NO_ENCODER:
            raise InputError(f"{what} are vectors, which encoder {encoder} cannot read: set encoder to {NO_ENCODER}")
        return shape
    if encoder == NO_ENCODER:
        raise InputError(f"{what} are images {shape}: set encoder to {' or '.join(ENCODERS)}")
    facts, (_, height, width) = ENCODERS[encoder], shape
    if isinstance(facts, ResNet):
        return 4 * facts.stages[-1][0]
    if isinstance(facts, Impala):
        for _ in facts.channels:
            height, width = halved(height), halved(width)
        return facts.channels[-1] * height * width
    for layer in facts:
        if min(height, width) < layer.kernel:
            raise InputError(f"images of {shape[1]} by {shape[2]} are too small for encoder {encoder}: set another one")
        height, width = ((size - layer.kernel) // layer.stride + 1 for size in (height, width))
    return facts[-1].channels * height * width


class Reader(NamedTuple):
    """The settings with which an algorithm reads observations.

    Attributes:
        encoder: The name of its encoder, or None if it only reads vectors.
        frame_stack: Number of images in an observation.
        crop_padding: Largest shift of an image in pixels; 0 turns shifts off.
    """

    encoder: str | None = None
    frame_stack: int = 1
    crop_padding: int = 0


def check_readable(reader: Reader, shape: Shape, what: str) -> None:
    """Checks that an algorithm reads observations of this shape.

    Args:
        reader: The algorithm's settings.
        shape: The shape of an observation.
        what: A description of the observations, for the message.

    Raises:
        InputError: The algorithm cannot read them.
    """
    if not isinstance(shape, int) and reader.encoder is None:
        raise InputError(f"{what} are images, which this algorithm cannot read: set env to another")
    if isinstance(shape, int) and reader.crop_padding > 0:
        raise InputError(f"{what} are vectors, and only images can be cropped: set crop_padding to 0")
    features(reader.encoder or NO_ENCODER, shape, what)
