"""PyTorch's behaviour at corners, which the JAX twins must share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests.conftest import both_in
from shared import jax_side

CORNERS = [-25.0, -20.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 19.9, 20.0, 20.1, 50.0]
FUNCTIONS = {
    "clamp": (lambda x: torch.clamp(x, -20.0, 2.0), lambda x: jax_side.clamp(x, -20.0, 2.0)),
    "clamp without bounds": (
        lambda x: torch.clamp(x, -np.inf, np.inf),
        lambda x: jax_side.clamp(x, -np.inf, np.inf),
    ),
    "softplus": (torch.nn.functional.softplus, jax_side.softplus),
    "relu": (torch.relu, jax.nn.relu),
    "minimum at a tie": (lambda x: torch.minimum(x, x.detach()), lambda x: jnp.minimum(x, jax.lax.stop_gradient(x))),
    "square": (torch.square, jnp.square),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_at_corners(name: str) -> None:
    """Values and gradients are equal at bounds, kinks and ties."""
    theirs, ours = FUNCTIONS[name]
    with both_in("float64"):
        x = torch.tensor(CORNERS, requires_grad=True)
        value = theirs(x)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        points = jnp.asarray(CORNERS, dtype=float)
        np.testing.assert_allclose(ours(points), value.detach().numpy(), rtol=1e-15, atol=0)
        our_gradient = jax.vmap(jax.grad(ours))(points)
        np.testing.assert_allclose(our_gradient, gradient.numpy(), rtol=1e-14, atol=1e-300)


def test_clip_would_not_do() -> None:
    """`jnp.clip` halves the gradient at its bound: why there is a `clamp` of our own."""
    assert float(jax.grad(lambda x: jnp.clip(x, -20.0, 2.0))(2.0)) == 0.5
    assert float(jax.grad(lambda x: jax_side.clamp(x, -20.0, 2.0))(2.0)) == 1.0


@pytest.mark.parametrize("bias", [False, True])
def test_linear_starts_as_torch_does(bias: bool) -> None:
    """Kernel and bias have PyTorch's default distribution: uniform within one over the root of the fan-in."""
    layer = jax_side.Linear(400)
    parameters = layer.init(jax.random.key(0), jnp.zeros((1, 100)))["params"]
    reference = torch.nn.Linear(100, 400)
    ours = np.asarray(parameters["bias" if bias else "kernel"]).ravel()
    theirs = (reference.bias if bias else reference.weight).detach().numpy().ravel()
    assert np.abs(ours).max() <= 0.1
    assert abs(ours.std() - theirs.std()) < 0.1 * theirs.std()
    assert abs(ours.mean()) < 0.01


def test_xavier_uniform_has_torchs_bound() -> None:
    """Uniform within gain * sqrt(6 / (fan_in + fan_out))."""
    ours = np.asarray(jax_side.xavier_uniform(gain=1e-2)(jax.random.key(0), (300, 200)))
    reference = torch.nn.init.xavier_uniform_(torch.empty(200, 300), gain=1e-2)
    assert np.abs(ours).max() == pytest.approx(float(reference.abs().max()), rel=1e-3)
    assert ours.std() == pytest.approx(float(reference.std()), rel=0.02)
