"""The port against its reference: fresh weights, layers, a gradient at its bounds, and one update."""

from types import ModuleType

import jax
import numpy as np
import pytest
import torch

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(5, 8))
BATCH = [RNG.normal(size=shape) for shape in ((7, 3), (7, 2), (7,), (7, 3))]
WEIGHTS = {"policy": RNG.normal(size=(3, 2)), "critic": RNG.normal(size=5), "target": RNG.normal(size=5)}


def test_a_fresh_head_is_as_small_as_jax_s(exercise: ModuleType, reference: ModuleType) -> None:
    """The largest of 40,000 weights is almost at the bound."""
    layer = exercise.head(100, 400)
    expected = np.abs(reference.HEAD_INIT(jax.random.key(0), (100, 400))).max()
    wrong = "the bound of the head's fresh weights differs"
    np.testing.assert_allclose(layer.weight.abs().max().item(), expected, rtol=1e-2, err_msg=wrong)
    assert not layer.bias.any(), "the head's bias isn't 0"


@pytest.mark.parametrize("size", [0.01, 2.0])
def test_the_block_is_jax_s(exercise: ModuleType, reference: ModuleType, size: float) -> None:
    """For small inputs, where an epsilon counts, and for large ones, where the form of the GELU does."""
    ours = exercise.block(torch.as_tensor(size * INPUTS)).detach().numpy()
    wrong = f"for inputs of size {size}, the block differs"
    np.testing.assert_allclose(ours, reference.block(size * INPUTS), rtol=1e-9, err_msg=wrong)


@pytest.mark.parametrize("action", [-1.5, -1.0, 0.0, 1.0])
def test_the_cut_s_gradient_is_jax_s(exercise: ModuleType, reference: ModuleType, action: float) -> None:
    """At a bound, too, where many of the data's actions are."""
    given = torch.tensor(action, requires_grad=True)
    exercise.cut(given).backward()
    theirs = jax.grad(reference.cut)(action)
    np.testing.assert_allclose(given.grad.item(), theirs, rtol=1e-12, err_msg=f"the gradient at {action} differs")


@pytest.mark.parametrize("part", WEIGHTS)
def test_an_update_is_jax_s(exercise: ModuleType, reference: ModuleType, part: str) -> None:
    """Of the policy, the critic and the target."""
    ours = {name: torch.tensor(weights, requires_grad=name != "target") for name, weights in WEIGHTS.items()}
    exercise.update(*ours.values(), [torch.as_tensor(column) for column in BATCH])
    theirs = dict(zip(WEIGHTS, reference.update(*WEIGHTS.values(), BATCH), strict=True))
    wrong = f"after an update, the {part} differs"
    np.testing.assert_allclose(ours[part].detach().numpy(), theirs[part], rtol=1e-10, err_msg=wrong)
