"""A ring of five rows, which are numbered from 1, so that a zero was never stored."""

from functools import partial
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
import torch

ROWS = np.stack([np.arange(1.0, 13.0), np.arange(1.0, 13.0)], axis=1)


def filled(exercise: ModuleType, number: int, together: int) -> Any:
    """The ring after so many rows, pushed so many at a time, by one compiled program."""
    ring, push = exercise.create(5, 2), jax.jit(exercise.push)
    for first in range(0, number, together):
        ring = push(ring, ROWS[first : first + together])
    return ring


@pytest.mark.parametrize("together", [1, 2, 3])
def test_the_rows_are_pytorch_s(exercise: ModuleType, fragment: ModuleType, together: int) -> None:
    """Before the ring is full, and after every push across its end."""
    theirs = fragment.Ring(5, 2)
    for first in range(0, 12, together):
        theirs.push(torch.as_tensor(ROWS[first : first + together]))
        ours, stored = filled(exercise, first + together, together), first + together
        assert (ours.size, ours.pointer) == (theirs.size, theirs.pointer), f"size or pointer differs after {stored}"
        wrong = f"{stored} rows, pushed {together} at a time, are not where PyTorch has them"
        np.testing.assert_allclose(ours.rows, theirs.rows, err_msg=wrong)


@pytest.mark.parametrize("number", [1, 3, 5, 8])
def test_a_batch_has_stored_rows_only(exercise: ModuleType, number: int) -> None:
    """All of them, equally often."""
    draw = jax.jit(partial(exercise.sample, batch_size=5000))
    drawn = np.asarray(draw(filled(exercise, number, 1), jax.random.key(0)))
    unused = int((drawn == 0.0).all(axis=1).sum())
    assert not unused, f"{unused} of 5000 rows of a batch were never stored, in a ring with {number} of 5 rows"
    kept = range(max(1, number - 4), number + 1)
    shares = [float((drawn[:, 0] == row).mean()) * len(kept) for row in kept]
    np.testing.assert_allclose(shares, 1.0, atol=0.15, err_msg="some stored rows are drawn more often than others")
