"""The epsilon in gradient clipping."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax import Array
from torch import Tensor

from lessons.cloning import ADAM, cloned
from lessons.measured import Error, Figure
from lessons.traps.compare import distances

PYTORCH = "`largest / (norm + 1e-6)`"
JAX = "optax: `largest / norm`"
SHOWS = "nothing"


def reference(gradient: Tensor) -> Tensor:
    parameter = torch.zeros_like(gradient)
    parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([parameter], 0.25)
    return parameter.grad


def wrong(gradient: Array) -> Array:
    clipped, _ = optax.clip_by_global_norm(0.25).update(gradient, optax.EmptyState())
    return clipped


def right(gradient: Array) -> Array:
    factor = jnp.minimum(0.25 / (optax.tree.norm(gradient) + 1e-6), 1.0)
    return jax.tree.map(lambda leaf: leaf * factor, gradient)


def measure() -> list[Error | Figure]:
    direction = np.random.default_rng(0).normal(size=100)
    direction /= np.linalg.norm(direction)
    sizes = [
        distances(f"clipped gradient, norm {norm:g}", reference, wrong, right, norm * direction) for norm in (1.0, 10.0)
    ]
    policies = [cloned(optimizer=optax.chain(optax.stateless(_leaves(way)), ADAM)) for way in (wrong, right)]
    return [*sizes, Figure("error of a policy cloned so", *policies)]


def _leaves(way: Callable[..., Array]) -> Callable[..., Array]:
    return lambda gradient, params: way(gradient)
