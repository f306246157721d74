"""Four defaults that the frameworks do not share."""

from types import ModuleType

import jax
import numpy as np
import pytest
import torch

INPUTS = 0.01 * np.random.default_rng(0).normal(size=(5, 8))


def test_the_block_is_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """For inputs so small that an epsilon beside their variance counts."""
    with torch.no_grad():
        theirs = fragment.block(torch.as_tensor(INPUTS)).numpy()
    ours, _ = exercise.Block().init_with_output(jax.random.key(0), INPUTS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, err_msg="LayerNorm and GELU differ")


@pytest.mark.parametrize("log_std", [-21.0, -20.0, 0.0, 2.0, 3.0])
def test_the_deviation_s_gradient_is_pytorch_s(exercise: ModuleType, fragment: ModuleType, log_std: float) -> None:
    """At a bound, too, where a policy that has run against it stands."""
    given = torch.tensor(log_std, requires_grad=True)
    fragment.deviation(given).backward()
    ours = jax.grad(exercise.deviation)(log_std)
    np.testing.assert_allclose(ours, given.grad.item(), rtol=1e-12, err_msg=f"the gradient at {log_std} differs")


def test_fresh_weights_are_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """Uniform, with PyTorch's bound."""
    kernel = np.asarray(exercise.KERNEL_INIT(jax.random.key(0), (50, 400)))
    np.testing.assert_allclose(
        np.abs(kernel).max(), fragment.initial_bound(50, 400), rtol=1e-2, err_msg="the bound of fresh weights"
    )
    np.testing.assert_allclose(kernel.std() * np.sqrt(3), 50**-0.5, rtol=2e-2, err_msg="the spread of fresh weights")
