"""Two loops, of any length, in programs that do not grow with it."""

from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

RNG = np.random.default_rng(0)
REWARDS = RNG.normal(size=8)
GIVEN = 0.5 * RNG.normal(size=(3, 2)), 0.5 * RNG.normal(size=(5, 3)), RNG.normal(size=3)


def returns(exercise: ModuleType, length: int) -> tuple[Any, Any]:
    return exercise.returns_to_go, (jnp.asarray(REWARDS[:length]), 0.9)


def states(exercise: ModuleType, horizon: int) -> tuple[Any, Any]:
    return partial(exercise.rollout, horizon=horizon), tuple(map(jnp.asarray, GIVEN))


@pytest.mark.parametrize("length", [1, 8])
def test_the_returns_are_pytorch_s(exercise: ModuleType, fragment: ModuleType, length: int) -> None:
    """In the order of the rewards, and in double precision."""
    theirs = fragment.returns_to_go(torch.as_tensor(REWARDS[:length]), 0.9).numpy()
    loop, given = returns(exercise, length)
    ours = jax.jit(loop)(*given)
    assert ours.shape == theirs.shape, f"the returns are {ours.shape} where the rewards are {theirs.shape}"
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg="the returns differ")


@pytest.mark.parametrize("horizon", [1, 8])
def test_the_states_are_pytorch_s(exercise: ModuleType, fragment: ModuleType, horizon: int) -> None:
    """From the first one, which is given, to the last."""
    theirs = fragment.rollout(*(torch.as_tensor(x) for x in GIVEN), horizon).numpy()
    loop, given = states(exercise, horizon)
    ours = np.asarray(jax.jit(loop)(*given))
    assert ours.shape == theirs.shape, f"a horizon of {horizon} gives states {ours.shape} in place of {theirs.shape}"
    for step, (mine, reference) in enumerate(zip(ours, theirs, strict=True)):
        wrong = f"state {step} of 0 to {horizon} differs"
        np.testing.assert_allclose(mine, reference, rtol=1e-10, err_msg=wrong)


@pytest.mark.parametrize("steps", [returns, states])
def test_the_program_does_not_grow(exercise: ModuleType, steps: Any) -> None:
    """A Python loop in place of the scan would make it longer with every step."""
    programs = (jax.make_jaxpr(loop)(*given) for loop, given in (steps(exercise, 4), steps(exercise, 8)))
    short, long = (str(program).count(" = ") for program in programs)
    assert short == long, f"a loop of four steps has {short} operations, one of eight has {long}: it is not a scan"
