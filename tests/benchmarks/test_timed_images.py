"""Timing updates from images: each program makes the same updates, and a row records the facts of its file."""

import jax
import numpy as np
import pytest

from benchmarks import images, jax_rungs
from benchmarks.rungs import EAGER, SHIPPED
from benchmarks.subjects import Subject
from parity_tests.engine.precision import both_in

NAME = "discrete/bc"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Subject:
    """A case with few updates; programs that earlier tests compiled are cleared."""
    case = images.Case((6, 10, 10), "minatar", 1, 3, {"batch_size": 8, "hidden_dims": (16,)})
    monkeypatch.setitem(images.CASES, NAME, case)
    monkeypatch.setattr(images, "ROWS", 50)
    images.warm_block.cache_clear()
    jax.clear_caches()
    return case.subject(NAME)


def program(subject: Subject) -> str:
    """The compiled text of an interval."""
    train, arguments = jax_rungs.interval(subject)
    return train.func.lower(*arguments, **train.keywords).compile().as_text()


@pytest.mark.thorough
def test_both_forms_make_the_same_updates(small: Subject) -> None:
    """In double precision; one convolves by matrix products, the other does not. PyTorch's trainer counts updates."""
    with both_in("float64"):
        ours, without = images.warm_block(NAME, SHIPPED)(), program(small)
        jax.clear_caches()
        theirs = images.warm_block(NAME, images.CONVOLUTION)()
        with images.convolving():
            convolves = program(small)
    for mine, other in zip(jax.tree.leaves(ours.actor), jax.tree.leaves(theirs.actor), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-10)
    assert [" convolution(" in text for text in (without, convolves)] == [False, True]
    assert images.warm_block(NAME, EAGER)().total_it == 2 * small.updates
    assert images.facts(NAME) == {"image": [6, 10, 10], "encoder": "minatar", "batch_size": 8}
