"""Convolutions that read images, by name: both frameworks build them from these facts.

Kernels lie within the image: nothing is padded. Between the layers and behind them stands ReLU.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shared.envs.spaces import Shape
from shared.errors import InputError

NO_ENCODER = "none"
"""The name for vectors, which go into the hidden layers as they are."""


class Filter(NamedTuple):
    """A layer of convolutions: how many there are, the side of their square kernels, and their stride."""

    channels: int
    kernel: int
    stride: int


FILTERS: Mapping[str, Sequence[Filter]] = {
    # Mnih et al., Human-level control through deep reinforcement learning, 2015, for images of 84 by 84
    "nature": (Filter(32, 8, 4), Filter(64, 4, 2), Filter(64, 3, 1)),
    # Young and Tian, MinAtar, 2019, https://arxiv.org/abs/1903.03176, for images of 10 by 10
    "minatar": (Filter(16, 3, 1),),
}


def features(encoder: str, shape: Shape, what: str = "observations") -> int:
    """How many numbers an encoder makes of an observation.

    Args:
        encoder: Its name.
        shape: Of the observation.
        what: Whose observations they are, for the message.

    Raises:
        InputError: They are images without an encoder, vectors with one, or images smaller than a kernel.
    """
    if isinstance(shape, int):
        if encoder != NO_ENCODER:
            raise InputError(f"{what} are vectors, which encoder {encoder} cannot read: set encoder to {NO_ENCODER}")
        return shape
    if encoder == NO_ENCODER:
        raise InputError(f"{what} are images {shape}: set encoder to {' or '.join(FILTERS)}")
    _, height, width = shape
    for layer in FILTERS[encoder]:
        if min(height, width) < layer.kernel:
            raise InputError(f"images of {shape[1]} by {shape[2]} are too small for encoder {encoder}: set another one")
        height, width = ((size - layer.kernel) // layer.stride + 1 for size in (height, width))
    return FILTERS[encoder][-1].channels * height * width


def encoder_of(config: Any) -> str:
    """The encoder that a config names; an algorithm without the setting has none."""
    return getattr(config, "encoder", NO_ENCODER)


def frame_stack_of(config: Any) -> int:
    """How many images an observation shows under a config; one without the setting for it."""
    return getattr(config, "frame_stack", 1)


def check_readable(config: Any, shape: Shape, what: str) -> None:
    """Whether an algorithm reads observations of this shape, under these settings.

    Args:
        config: The algorithm's; one without `encoder` reads vectors alone.
        shape: Of an observation.
        what: Whose observations they are, for the message.

    Raises:
        InputError: It does not.
    """
    if not isinstance(shape, int) and not hasattr(config, "encoder"):
        raise InputError(f"{what} are images, which this algorithm cannot read: set env to another")
    features(encoder_of(config), shape, what)
