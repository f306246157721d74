"""An int32 step divided is float32."""

import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax import Array
from torch import Tensor

from lessons.cloning import cloned
from lessons.measured import Error, Figure
from parity_tests.errors import error

PYTORCH = "the default type, float64 if you set it"
JAX = "float32, even if double precision is turned on; `optax` counts in int32"
SHOWS = "nothing; in double precision the checks *update*, *log* and *trajectory* agree only to about 1e-8"
RATE, WARMUP = 1e-3, 10


def reference(count: Tensor) -> Tensor:
    return RATE * torch.clamp((count + 1) / WARMUP, max=1.0)


def wrong(count: Array) -> Array:
    return optax.linear_schedule(0.0, RATE, WARMUP)(count + 1)


def right(count: Array) -> Array:
    return optax.linear_schedule(0.0, RATE, WARMUP)(count + 1.0)


def measure() -> list[Error | Figure]:
    counts = np.arange(2 * WARMUP, dtype=np.int32)
    theirs = reference(torch.as_tensor(counts)).numpy()
    wrongly, rightly = (error(way(jnp.asarray(counts)), theirs) for way in (wrong, right))
    return [
        Error(f"rates of a warm-up over {WARMUP} updates", wrongly, rightly, 1e-12),
        Figure("error of a cloned policy", *(cloned(optimizer=optax.adam(way)) for way in (wrong, right))),
    ]
