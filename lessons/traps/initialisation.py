"""How weights start."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import linen as nn
from jax.nn.initializers import lecun_normal, zeros

from lessons import cloning
from lessons.measured import Error, Figure
from shared.frameworks.jax_layers import Linear

PYTORCH = "`Linear`: uniform within 1 / sqrt(fan-in), biases too; `Embedding`: N(0, 1)"
JAX = "`Dense`: normal of deviation 1 / sqrt(fan-in), biases 0; `Embed`: deviation 1 / sqrt(features)"
SHOWS = "a fresh policy's actions are twice as large, and the trained policy is different"


def reference() -> tuple[torch.nn.Module, torch.nn.Module]:
    return torch.nn.Linear(256, 4096), torch.nn.Embedding(1000, 128)


def wrong() -> tuple[nn.Module, nn.Module]:
    return nn.Dense(4096), nn.Embed(1000, 128)


def right() -> tuple[nn.Module, nn.Module]:
    return Linear(4096), nn.Embed(1000, 128, embedding_init=nn.initializers.normal(1.0))


def _deviations(linear: nn.Module, embedding: nn.Module) -> list[float]:
    """Of a layer's kernel, of its bias and of an embedding."""
    layer = linear.init(jax.random.key(0), jnp.zeros((1, 256)))["params"]
    table = embedding.init(jax.random.key(0), jnp.zeros(1, int))["params"]["embedding"]
    return [float(values.std()) for values in (layer["kernel"], layer["bias"], table)]


def _boldness(params: cloning.Params) -> float:
    """The mean size of a policy's actions."""
    return float(jnp.abs(jnp.tanh(cloning.network(params, cloning.rows().observations))).mean())


def measure() -> list[Error | Figure]:
    torch.manual_seed(0)
    linear, embedding = reference()
    theirs = [values.detach().numpy().std() for values in (linear.weight, linear.bias, embedding.weight)]
    ours = [np.abs(np.array(_deviations(*way())) / theirs - 1.0) for way in (wrong, right)]
    names = ("deviation of a kernel, fan-in 256", "deviation of its bias", "deviation of an embedding, 128 features")
    starts = [cloning.fresh(kernel_init=lecun_normal(), bias_init=zeros), cloning.fresh()]
    return [
        # What is left is that both sides draw numbers of their own.
        *(Error(name, float(a), float(b), 0.05) for name, a, b in zip(names, *ours, strict=True)),
        Figure("size of a fresh policy's actions", *map(_boldness, starts)),
        Figure("error of a policy cloned from there", *(cloning.cloned(params=start) for start in starts)),
    ]
