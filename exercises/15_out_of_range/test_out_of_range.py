"""The end of an episode of six steps."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

RNG = np.random.default_rng(0)
REWARDS, VALUES, STATES = RNG.normal(size=6), RNG.normal(size=6), RNG.normal(size=(6, 2))


def test_the_targets_are_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """The last one, too."""
    theirs = fragment.targets(torch.as_tensor(REWARDS), torch.as_tensor(VALUES), 0.9).numpy()
    ours = np.asarray(jax.jit(exercise.targets)(REWARDS, VALUES, 0.9))
    np.testing.assert_allclose(ours[:-1], theirs[:-1], rtol=1e-12, err_msg="targets before the last one differ")
    wrong = f"the last target is {ours[-1]:.3f}, the last reward is {REWARDS[-1]:.3f}"
    np.testing.assert_allclose(ours[-1], theirs[-1], rtol=1e-12, err_msg=wrong)


def compiled(exercise: ModuleType) -> Any:
    return jax.jit(lambda start: exercise.window(jnp.asarray(STATES), start, 4))


@pytest.mark.parametrize("start", range(6))
def test_the_window_is_pytorch_s(exercise: ModuleType, fragment: ModuleType, start: int) -> None:
    """From every start, one program for all: the rows that are there, and zeros after them."""
    theirs = fragment.window(torch.as_tensor(STATES), start, 4).numpy()
    ours, there = compiled(exercise)(start), min(4, 6 - start)
    wrong = f"a window from step {start} on does not begin with that step's state"
    np.testing.assert_allclose(ours[:there], theirs[:there], rtol=1e-12, err_msg=wrong)
    wrong = f"a window from step {start} on is not zero after the episode's end"
    np.testing.assert_allclose(ours[there:], theirs[there:], rtol=1e-12, err_msg=wrong)
