"""Any start, any length, and no branch in the program."""

from types import ModuleType

import jax
import numpy as np
import pytest

BATCHES = np.random.default_rng(0).normal(size=11)


@pytest.mark.parametrize("freq", [1, 2, 3])
@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize("length", [1, 6, 11])
def test_both_are_pytorch_s(exercise: ModuleType, fragment: ModuleType, freq: int, start: int, length: int) -> None:
    """After an interval that fits no period."""
    theirs = fragment.train(1.0, 2.0, BATCHES[:length], start, freq)
    ours = exercise.train(1.0, 2.0, BATCHES[:length], phase=start % freq, freq=freq)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg="critic and policy differ")


def program(exercise: ModuleType) -> str:
    return str(jax.make_jaxpr(lambda batches: exercise.train(1.0, 2.0, batches, 1, 2))(BATCHES))


def test_no_branch_is_left(exercise: ModuleType) -> None:
    """Neither a `cond` nor a `where` that computes both sides and throws one away."""
    text = program(exercise)
    assert "cond[" not in text, "there is a cond in the program"
    assert "select_n" not in text, "there is a select in the program"


def test_the_interval_is_one_scan(exercise: ModuleType) -> None:
    """Not a program that grows with the interval."""
    assert "scan[" in program(exercise), "there is no scan in the program"
