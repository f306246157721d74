"""Convolutions that read images, in PyTorch. `shared/frameworks/jax_encoders.py` holds the same names for JAX."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shared.envs.spaces import Shape
from shared.runs.encoders import FILTERS, features


class Pixels(nn.Module):
    """Bytes (B, C, H, W) as numbers from 0 to 1."""

    def forward(self, images: Tensor) -> Tensor:
        """Divides once, here and nowhere else."""
        return images.to(torch.get_default_dtype()) / 255.0


def convolutions(name: str, shape: Shape) -> tuple[Sequence[nn.Module], int]:
    """An encoder's layers and the number of its features, which the hidden layers take; no layers for vectors.

    Args:
        name: The encoder's.
        shape: Of an observation: S or (C, H, W).

    Raises:
        InputError: The encoder cannot read such observations.
    """
    width = features(name, shape)
    if isinstance(shape, int):
        return [], width
    layers: list[nn.Module] = [Pixels()]
    inputs = shape[0]
    for channels, kernel, stride in FILTERS[name]:
        layers += [nn.Conv2d(inputs, channels, kernel, stride), nn.ReLU()]
        inputs = channels
    # As d3rlpy, which tries them on a row to count their features.
    torch.rand(1, *shape)
    return [*layers, nn.Flatten()], width
