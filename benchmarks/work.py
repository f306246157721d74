"""Measures the arithmetic in an update, and the machine's peak rate."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core import jaxprs_in_params

from benchmarks.jax_rungs import interval
from benchmarks.subjects import UPDATES, subject


def full_precision() -> None:
    """Makes both frameworks multiply float32 in full; by default, JAX uses TF32 on NVIDIA GPUs, unlike PyTorch."""
    jax.config.update("jax_default_matmul_precision", "highest")
    torch.set_float32_matmul_precision("highest")


def matmul_flops(jaxpr: Any) -> int:
    """Floating-point operations of all matrix products in a program, multiplied by the length of enclosing scans."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            ((contracted, _), _), left = equation.params["dimension_numbers"], equation.invars[0].aval
            total += 2 * equation.outvars[0].aval.size * int(np.prod([left.shape[axis] for axis in contracted]))
        repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in jaxprs_in_params(equation.params):
            total += repeats * matmul_flops(inner)
    return total


def gflop_per_update(name: str) -> float:
    """The matrix products of one update, averaged over a block, in 1e9 operations.

    They are counted in the JAX twin's program, which runs CQL's policy once per state. The PyTorch twin, like CORL,
    runs it
    on `cql_n_actions` equal rows. Needless repetition does not count as work.
    """
    train, arguments = interval(subject(name))
    program = jax.make_jaxpr(train)(*arguments)
    return matmul_flops(program.jaxpr) / UPDATES[name] / 1e9


def matmul_peak(seconds: float = 0.2, size: int = 2048) -> float:
    """The best rate of a large float32 matrix product on JAX's default device, in 1e9 operations per second."""
    a = jnp.ones((size, size))
    product: Callable = jax.jit(jnp.matmul)
    product(a, a).block_until_ready()
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        product(a, a).block_until_ready()
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best / 1e9
