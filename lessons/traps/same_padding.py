"""How a convolution with a stride is padded."""

import jax
import numpy as np
import torch
from jax import Array
from torch import Tensor

from lessons.measured import Error, Figure
from lessons.traps.compare import distances, gradient_distances

PYTORCH = "as many pixels as you specify, on both sides"
JAX = "`SAME`: an odd pixel goes to the right and below"
SHOWS = "nothing: the shapes are equal, but everything is one pixel off"

LAYOUT = ("NCHW", "OIHW", "NCHW")


def reference(images: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(images, weight, stride=2, padding=1)


def wrong(images: Array, weight: Array) -> Array:
    return jax.lax.conv_general_dilated(images, weight, (2, 2), "SAME", dimension_numbers=LAYOUT)


def right(images: Array, weight: Array) -> Array:
    padding = ((1, 1), (1, 1))
    return jax.lax.conv_general_dilated(images, weight, (2, 2), padding, dimension_numbers=LAYOUT)


def measure() -> list[Error | Figure]:
    rng = np.random.default_rng(0)
    images, weight = rng.uniform(size=(64, 4, 10, 10)), rng.normal(size=(16, 4, 3, 3))
    # As images mostly are: what lies beside a pixel is like it.
    smooth = np.mean([np.roll(images, (i, j), (2, 3)) for i in range(4) for j in range(4)], axis=0)
    return [
        distances("outputs, random pixels", reference, wrong, right, images, weight),
        distances("outputs, smooth images", reference, wrong, right, smooth, weight),
        gradient_distances("gradient", reference, wrong, right, images, weight),
    ]
