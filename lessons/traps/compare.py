"""Distances of the wrong and the right code from PyTorch's, on the same inputs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from lessons.measured import Error
from parity_tests.errors import error

# Rounding in double precision, of results of size 1
ROUNDING = 1e-12


def distances(
    what: str,
    reference: Callable[..., Any],
    wrong: Callable[..., Any],
    right: Callable[..., Any],
    *inputs: np.ndarray,
    bound: float = ROUNDING,
) -> Error:
    """The largest differences of outputs, relative to the reference's largest entry."""
    theirs = reference(*map(torch.as_tensor, inputs)).detach().numpy()
    wrongly, rightly = (error(ours(*map(jnp.asarray, inputs)), theirs) for ours in (wrong, right))
    return Error(what, wrongly, rightly, bound)


def gradient_distances(
    what: str, reference: Callable[..., Any], wrong: Callable[..., Any], right: Callable[..., Any], *inputs: np.ndarray
) -> Error:
    """The same of the gradient of the outputs' sum by the first input."""
    first, *rest = map(torch.as_tensor, inputs)
    first = first.clone().requires_grad_()
    (theirs,) = torch.autograd.grad(reference(first, *rest).sum(), first)
    given = tuple(map(jnp.asarray, inputs))
    ours = (jax.grad(lambda *given, way=way: way(*given).sum())(*given) for way in (wrong, right))
    wrongly, rightly = (error(gradient, theirs.numpy()) for gradient in ours)
    return Error(what, wrongly, rightly, ROUNDING)
