"""Dropout's masks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import linen as nn
from jax import Array
from torch import Tensor

from lessons import cloning
from lessons.measured import Error, Figure
from parity_tests.errors import error
from shared.data.transitions import Batch

PYTORCH = "its generator's draws"
JAX = "other draws from the same seed"
SHOWS = "a run like one with another seed; you can't compare any output, so every other mistake goes unnoticed"
RATE, SHAPE = 0.1, (64, 256)


def reference(inputs: Tensor, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.nn.functional.dropout(inputs, RATE)


def wrong(inputs: Array, seed: int) -> Array:
    layer = nn.Dropout(RATE, deterministic=False)
    return layer.apply({}, inputs, rngs={"dropout": jax.random.key(seed)})


def right(inputs: Array, mask: Array) -> Array:
    return inputs * mask


def _torch_masks(*shape: int) -> np.ndarray:
    """The masks that PyTorch multiplies by: drawn first, then handed to either side."""
    return reference(torch.ones(shape), 0).numpy()


def _jax_masks(*shape: int) -> np.ndarray:
    return np.asarray(wrong(jnp.ones(shape), 0))


def _cloned(draw: Callable[..., np.ndarray]) -> float:
    """The error of a policy cloned with dropout by these masks, measured without them."""
    masks = jnp.asarray(draw(cloning.UPDATES, cloning.BATCH_SIZE, cloning.WIDTH))

    def loss(params: cloning.Params, inputs: tuple[Batch, Array]) -> Array:
        batch, mask = inputs
        return cloning.squared_error(params, batch, activation=lambda x: jax.nn.relu(x) * mask)

    return cloning.cloned(loss, inputs=(cloning.batches(), masks))


def measure() -> list[Error | Figure]:
    inputs = np.random.default_rng(0).normal(size=SHAPE)
    theirs = reference(torch.as_tensor(inputs), 0).numpy()
    mask = _torch_masks(*SHAPE)
    ours = wrong(jnp.asarray(inputs), 0), right(jnp.asarray(inputs), jnp.asarray(mask))
    wrongly, rightly = (error(x, theirs) for x in ours)
    differing, alike = (float(((np.asarray(x) != 0) != (mask != 0)).mean()) for x in ours)
    return [
        Error("outputs under the same seed", wrongly, rightly, 1e-12),
        Error("share of the mask's entries that differ", differing, alike, 0.0),
        Figure("error of a policy cloned with dropout", *map(_cloned, (_jax_masks, _torch_masks))),
    ]
