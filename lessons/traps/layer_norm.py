"""LayerNorm's epsilon."""

import numpy as np
import torch
from flax import linen as nn
from jax import Array
from jax.nn import relu
from torch import Tensor

from lessons.cloning import cloned
from lessons.measured import Error, Figure
from lessons.traps.compare import distances

PYTORCH = "1e-5"
JAX = "1e-6, and the variance as a difference of means"
SHOWS = "nothing; if a layer's inputs are small, its outputs are larger"


def reference(inputs: Tensor) -> Tensor:
    return torch.nn.LayerNorm(inputs.shape[-1])(inputs)


def wrong(inputs: Array) -> Array:
    return nn.LayerNorm(use_scale=False, use_bias=False).apply({}, inputs)


def right(inputs: Array) -> Array:
    layer = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, use_scale=False, use_bias=False)
    return layer.apply({}, inputs)


def measure() -> list[Error | Figure]:
    inputs = np.random.default_rng(0).normal(size=(64, 256))
    policies = [cloned(activation=lambda x, norm=norm: relu(norm(x))) for norm in (wrong, right)]
    return [
        distances("outputs, inputs of size 0.01", reference, wrong, right, 0.01 * inputs),
        distances("outputs, inputs of size 1", reference, wrong, right, inputs),
        Figure("error of a cloned policy with a norm in each layer", *policies),
    ]
