"""Precision, set on both sides and taken back."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import torch


@contextmanager
def both_in(precision: str) -> Iterator[None]:
    """Both frameworks in `float64` or `float32`, torch on one thread: these tensors are too small for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, precision))
    try:
        with jax.enable_x64(precision == "float64"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
