"""GELU's form."""

import jax
import numpy as np
import torch
from jax import Array
from torch import Tensor

from lessons.cloning import cloned
from lessons.measured import Error, Figure
from lessons.traps.compare import distances, gradient_distances

PYTORCH = "exact, by `erf`"
JAX = "an approximation by `tanh`"
SHOWS = "nothing: the policy is as good, and another one"


def reference(inputs: Tensor) -> Tensor:
    return torch.nn.functional.gelu(inputs)


def wrong(inputs: Array) -> Array:
    return jax.nn.gelu(inputs)


def right(inputs: Array) -> Array:
    return jax.nn.gelu(inputs, approximate=False)


def measure() -> list[Error | Figure]:
    # Up to 1, so that what is relative to the largest entry is relative to 1.
    inputs = np.linspace(-4.0, 1.0, 1001)
    return [
        distances("outputs, inputs from -4 to 1", reference, wrong, right, inputs),
        gradient_distances("gradient, inputs from -4 to 1", reference, wrong, right, inputs),
        Figure("error of a cloned policy with it", cloned(activation=wrong), cloned(activation=right)),
    ]
