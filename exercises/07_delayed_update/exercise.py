"""The same in JAX, compiled: an interval of updates as one scan."""

from functools import partial

import jax
from jax import Array


def update(critic: Array, policy: Array, batch: Array, delayed: bool) -> tuple[Array, Array]:
    """One update; where `delayed`, the policy learns too. `delayed` is a Python bool, known when this is compiled."""
    critic = critic - 0.1 * (critic - batch)
    if delayed:
        policy = policy - 0.1 * (policy - critic)
    return critic, policy


@partial(jax.jit, static_argnames=("phase", "freq"))
def train(critic: Array, policy: Array, batches: Array, phase: int, freq: int) -> tuple[Array, Array]:
    """Both after one update for each of the batches (N,); `phase` is the number of updates before them, modulo `freq`.

    No branch may be left in the program: which updates are delayed is known when it is compiled.
    """
    raise NotImplementedError
