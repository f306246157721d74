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
    """In double precision; one convolves by matrix products, the other does not."""
    with both_in("float64"):
        ours = images.warm_block(NAME, SHIPPED)()
        jax.clear_caches()
        theirs = images.warm_block(NAME, images.CONVOLUTION)()
    for mine, other in zip(jax.tree.leaves(ours.actor), jax.tree.leaves(theirs.actor), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-10)


@pytest.mark.thorough
def test_each_program_is_what_its_name_says(small: Subject) -> None:
    """PyTorch's trainer counts its updates; only one of JAX's programs contains convolutions."""
    assert images.warm_block(NAME, EAGER)().total_it == 2 * small.updates
    assert images.facts(NAME) == {"image": [6, 10, 10], "encoder": "minatar", "batch_size": 8}
    assert " convolution(" not in program(small)
    jax.clear_caches()
    with images.convolving():
        assert " convolution(" in program(small)


def test_a_row_is_what_was_measured() -> None:
    programs = {
        program: {"updates_per_second": {"max": rate}, "blocks_undisturbed": 2}
        for program, rate in zip(images.PROGRAMS, (10.0, 40.0, 4.0), strict=True)
    }
    case = {"image": [4, 84, 84], "encoder": "nature", "batch_size": 32, "programs": programs}
    row = images.table({"cases": {"online/dqn": case}}).splitlines()[-1]
    assert row == "| online/dqn | 4 x 84 x 84 | nature | 32 | 10.0 | 40.0 | **4.00** | 4.0 | 2, 2, 2 of 3 |"
