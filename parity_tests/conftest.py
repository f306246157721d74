"""Precision for a test, set on both sides and taken back after it."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest
import torch

from parity_tests.ladder import forget_programs


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


_tests = itertools.count(1)


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Compiled programs are kept for a while, since tests share them, but not for ever."""
    yield
    if next(_tests) % 50 == 0:
        forget_programs()


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """The precision that a test asks for by indirect parametrisation."""
    with both_in(request.param):
        yield request.param
