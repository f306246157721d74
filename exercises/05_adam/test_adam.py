"""One more step on either side, from a warm optimiser and from a fresh one."""

from types import ModuleType

import jax.numpy as jnp
import numpy as np
import pytest
import torch

INPUTS = torch.as_tensor(np.random.default_rng(0).normal(size=(5, 3)))


def numbers(layer: torch.nn.Linear, gradient: bool = False) -> dict[str, jnp.ndarray]:
    weight, bias = ((x.grad if gradient else x).detach().numpy().copy() for x in (layer.weight, layer.bias))
    return {"kernel": jnp.asarray(weight.T), "bias": jnp.asarray(bias)}


def test_the_optimiser_s_state_is_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """First moments, second moments, steps."""
    layer, optimizer = fragment.trained(INPUTS, 10)
    adam = exercise.transfer(layer, optimizer)[0]
    for name, moments in (("exp_avg", adam.mu), ("exp_avg_sq", adam.nu)):
        theirs = optimizer.state[layer.weight][name].numpy().T
        np.testing.assert_allclose(moments["kernel"], theirs, rtol=1e-12, err_msg=f"{name} differs")
    assert adam.count == 10, "the number of steps differs"


@pytest.mark.parametrize("steps", [1, 10])
def test_the_next_step_is_pytorch_s(exercise: ModuleType, fragment: ModuleType, steps: int) -> None:
    """With gradients small enough to see the epsilon beside them."""
    layer, optimizer = fragment.trained(1e-3 * INPUTS, steps)
    params, opt_state = numbers(layer), exercise.transfer(layer, optimizer)
    fragment.gradient(layer, 1e-3 * INPUTS)
    ours, _ = exercise.step(params, numbers(layer, gradient=True), opt_state)
    optimizer.step()
    theirs = numbers(layer)
    for name in ("kernel", "bias"):
        moved = ours[name] - params[name]
        np.testing.assert_allclose(moved, theirs[name] - params[name], rtol=1e-9, err_msg=f"the {name}'s step differs")
