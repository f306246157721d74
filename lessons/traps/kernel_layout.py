"""The layout of a layer's weights."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from lessons import cloning
from lessons.measured import Error, Figure
from lessons.traps.compare import distances

PYTORCH = "(out, in)"
JAX = "(in, out)"
SHOWS = "a policy that was good in PyTorch is twice as far from the data; a kernel that isn't square doesn't fit"


def reference(inputs: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.linear(inputs, weight)


def wrong(inputs: Array, weight: Array) -> Array:
    kernel = weight
    return inputs @ kernel


def right(inputs: Array, weight: Array) -> Array:
    kernel = weight.T
    return inputs @ kernel


def _moved(trained: cloning.Params, layer: Callable[..., Array]) -> float:
    """The error of a policy whose square layer is moved over from PyTorch by `layer`."""
    first, square, last = trained
    weight = square["kernel"].T  # as PyTorch has it
    kernel = layer(jnp.eye(len(weight)), weight)
    return float(cloning.squared_error([first, {**square, "kernel": kernel}, last], cloning.rows()))


def measure() -> list[Error | Figure]:
    rng = np.random.default_rng(0)
    inputs, weight = rng.normal(size=(64, 256)), rng.uniform(-1 / 16, 1 / 16, size=(256, 256))
    trained = cloning.fit(
        cloning.fresh((11, cloning.WIDTH, cloning.WIDTH, 3)), cloning.batches(), cloning.squared_error
    )
    return [
        distances("outputs of a square layer", reference, wrong, right, inputs, weight),
        Figure("error of a cloned policy that was moved over", *(_moved(trained, way) for way in (wrong, right))),
    ]
