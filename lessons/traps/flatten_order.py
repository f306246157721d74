"""The order in which an image is flattened."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from lessons.measured import Error, Figure
from lessons.traps.compare import distances

PYTORCH = "channel by channel (C, H, W)"
JAX = "pixel by pixel (H, W, C), the layout of images in flax"
SHOWS = "a converted network acts differently; a newly trained one shows nothing"

ACTIONS = 4


def reference(images: Tensor, weight: Tensor) -> Tensor:
    return torch.flatten(images, 1) @ weight.T


def wrong(images: Array, weight: Array) -> Array:
    channels_last = images.transpose(0, 2, 3, 1)
    return channels_last.reshape(len(images), -1) @ weight.T


def right(images: Array, weight: Array) -> Array:
    channels_last = images.transpose(0, 2, 3, 1)
    return channels_last.transpose(0, 3, 1, 2).reshape(len(images), -1) @ weight.T


def _acts_alike(layer: Callable[..., Array], images: np.ndarray, weight: np.ndarray) -> float:
    """The share of images for which the layer values the same action most as PyTorch's does."""
    best = reference(torch.as_tensor(images), torch.as_tensor(weight)).argmax(1).numpy()
    return float(np.mean(np.asarray(layer(jnp.asarray(images), jnp.asarray(weight)).argmax(1)) == best))


def measure() -> list[Error | Figure]:
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(1000, 16, 8, 8))
    weight = rng.normal(size=(ACTIONS, 16 * 8 * 8)) / 32
    alike = (_acts_alike(way, images, weight) for way in (wrong, right))
    return [
        distances("outputs of the next layer", reference, wrong, right, images, weight),
        Figure(f"share of images with the same best action of {ACTIONS}", *alike),
    ]
