"""The step at which a schedule is read."""

import numpy as np
import optax
import torch
from jax import Array

from lessons.cloning import UPDATES, cloned
from lessons.measured import Error, Figure
from parity_tests.errors import error

PYTORCH = "`LambdaLR` passes 0 before the first update; for a warm-up you write `(step + 1) / warmup`"
JAX = "`optax.linear_schedule` starts at its first value"
SHOWS = "the first update does nothing, and all others in the warm-up are one step late"
RATE, WARMUP = 1e-3, 10


def reference(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / WARMUP, 1.0))


def wrong(step: Array) -> Array:
    return optax.linear_schedule(0.0, RATE, WARMUP)(step)


def right(step: Array) -> Array:
    return optax.linear_schedule(0.0, RATE, WARMUP)(step + 1)


def _torch_rates() -> np.ndarray:
    """What PyTorch steps with, update by update."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=RATE)
    scheduler, rates = reference(optimizer), []
    for _ in range(UPDATES):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


def measure() -> list[Error | Figure]:
    theirs, steps = _torch_rates(), np.arange(UPDATES)
    ours = [np.array([way(step) for step in steps[: 2 * WARMUP]]) for way in (wrong, right)]
    wrongly, rightly = (error(rates, theirs[: 2 * WARMUP]) for rates in ours)
    return [
        Error(f"rates of a warm-up over {WARMUP} updates", wrongly, rightly, 1e-12),
        Figure("rate of the first update, over the full one", *(float(rates[0] / RATE) for rates in ours)),
        Figure("error of a cloned policy", *(cloned(optimizer=optax.adam(way)) for way in (wrong, right))),
    ]
