"""The precision of a matrix product on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from torch import Tensor

from lessons.cloning import cloned
from lessons.measured import Error, Figure
from parity_tests.errors import error

PYTORCH = "float32"
JAX = "TF32 on NVIDIA GPUs that have it: operands with 10 bits of mantissa"
SHOWS = "nothing; in single precision the checks *update* and *act* can't pass"


def reference(rows: Tensor, kernel: Tensor) -> Tensor:
    return rows @ kernel


def wrong(rows: Array, kernel: Array) -> Array:
    # What `rows @ kernel` is on such a GPU, on any machine
    rows, kernel = (jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10) for x in (rows, kernel))
    return rows @ kernel


def right(rows: Array, kernel: Array) -> Array:
    with jax.default_matmul_precision("highest"):
        return rows @ kernel


def _bfloat16(rows: Array, kernel: Array) -> Array:
    rows, kernel = (jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7) for x in (rows, kernel))
    return rows @ kernel


def measure() -> list[Error | Figure]:
    rng = np.random.default_rng(0)
    rows, kernel = rng.normal(size=(256, 256)), rng.uniform(-1 / 16, 1 / 16, size=(256, 256))
    exact, operands = rows @ kernel, (jnp.asarray(rows), jnp.asarray(kernel))
    single = right(jnp.asarray(rows, jnp.float32), jnp.asarray(kernel, jnp.float32))
    rounded = {"TF32": wrong, "bfloat16": _bfloat16}
    return [
        *(
            Error(f"product of 256 terms, operands in {name}", error(way(*operands), exact), error(single, exact), 1e-6)
            for name, way in rounded.items()
        ),
        Figure("error of a policy cloned in TF32", cloned(product=wrong), cloned(product=right)),
    ]
