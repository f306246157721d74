"""Sets the precision of both frameworks, and restores it."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import torch


@contextmanager
def both_in(precision: str) -> Iterator[None]:
    """Runs both frameworks in `float64` or `float32`, with one PyTorch thread because these tensors are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, precision))
    try:
        with jax.enable_x64(precision == "float64"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
