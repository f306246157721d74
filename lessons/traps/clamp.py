"""The gradient of a clamp at its bound."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax import Array
from torch import Tensor

from lessons.measured import Error, Figure
from lessons.traps.compare import distances, gradient_distances
from shared.frameworks import jax_layers

PYTORCH = "1"
JAX = "0.5"
SHOWS = "a parameter that starts at its bound leaves it half as fast; with Adam, just as fast"


def reference(log_std: Tensor) -> Tensor:
    return torch.clamp(log_std, -20.0, 2.0)


def wrong(log_std: Array) -> Array:
    return jnp.clip(log_std, -20.0, 2.0)


def right(log_std: Array) -> Array:
    return jax_layers.clamp(log_std, -20.0, 2.0)


def _first_step(way: Callable[..., Array], optimizer: optax.GradientTransformation) -> float:
    """How far a parameter at its upper bound goes in the first step down its clamp."""
    gradient = jax.grad(way)(jnp.asarray(2.0))
    change, _ = optimizer.update(gradient, optimizer.init(gradient))
    return float(-change)


def measure() -> list[Error | Figure]:
    inside, bound = np.linspace(-19.9, 1.9, 101), np.array([2.0, -20.0])
    optimizers = {"gradient descent": optax.sgd(0.1), "Adam": optax.adam(0.1)}
    return [
        gradient_distances("gradient at a bound", reference, wrong, right, bound),
        *(
            Figure(f"first step from a bound, {name} at rate 0.1", *(_first_step(way, o) for way in (wrong, right)))
            for name, o in optimizers.items()
        ),
        Figure("values inside", *distances("", reference, wrong, right, inside)[1:3]),
    ]
