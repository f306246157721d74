"""Adam's epsilon."""

from collections.abc import Callable, Iterable

import numpy as np
import optax
import torch
from jax import Array

from lessons.cloning import Params, cloned, squared_error
from lessons.measured import Error, Figure
from lessons.traps.compare import distances
from shared.data.transitions import Batch

PYTORCH = "1e-8, added to the root"
JAX = "optax: the same; 1e-5 if you copied it from another algorithm"
SHOWS = "parameters with small gradients learn more slowly"


def reference(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def wrong() -> optax.GradientTransformation:
    return optax.adam(1e-3, eps=1e-5)


def right() -> optax.GradientTransformation:
    return optax.adam(1e-3)


def _torch_step(gradient: torch.Tensor) -> torch.Tensor:
    """Where a parameter goes from 0 in its first step."""
    parameter = torch.zeros_like(gradient)
    parameter.grad = gradient
    reference([parameter]).step()
    return parameter


def _step_of(optimizer: optax.GradientTransformation) -> Callable[[Array], Array]:
    return lambda gradient: optimizer.update(gradient, optimizer.init(gradient))[0]


def _small(params: Params, batch: Batch) -> Array:
    """Behaviour cloning's loss times a small number, which Adam takes out but for its epsilon."""
    return 1e-3 * squared_error(params, batch)


def measure() -> list[Error | Figure]:
    ways = wrong(), right()
    wrong_step, right_step = map(_step_of, ways)
    steps = [
        distances(f"first step, gradients of {size:g}", _torch_step, wrong_step, right_step, np.full(3, size))
        for size in (1e-6, 1e-5, 1e-3)
    ]
    return [
        *steps,
        Figure("error of a cloned policy", *(cloned(optimizer=way) for way in ways)),
        Figure("the same, its loss times 0.001", *(cloned(_small, optimizer=way) for way in ways)),
    ]
