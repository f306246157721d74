"""The JAX twins share PyTorch's behaviour at corner cases."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests.engine.precision import both_in
from parity_tests.pairs import PAIRS
from shared.frameworks import jax_layers

CORNERS = [-25.0, -20.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 19.9, 20.0, 20.1, 50.0]
FUNCTIONS = {
    "clamp": (lambda x: torch.clamp(x, -20.0, 2.0), lambda x: jax_layers.clamp(x, -20.0, 2.0)),
    "clamp without bounds": (
        lambda x: torch.clamp(x, -np.inf, np.inf),
        lambda x: jax_layers.clamp(x, -np.inf, np.inf),
    ),
    "softplus": (torch.nn.functional.softplus, jax_layers.softplus),
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
    """`jnp.clip` halves the gradient at its bound, which is why there is our own `clamp`."""
    assert float(jax.grad(lambda x: jnp.clip(x, -20.0, 2.0))(2.0)) == 0.5
    assert float(jax.grad(lambda x: jax_layers.clamp(x, -20.0, 2.0))(2.0)) == 1.0


@pytest.mark.parametrize("bias", [False, True])
def test_linear_starts_as_torch_does(bias: bool) -> None:
    """Kernel and bias have PyTorch's default distribution: uniform within 1 / sqrt(fan_in)."""
    layer = jax_layers.Linear(400)
    parameters = layer.init(jax.random.key(0), jnp.zeros((1, 100)))["params"]
    reference = torch.nn.Linear(100, 400)
    ours = np.asarray(parameters["bias" if bias else "kernel"]).ravel()
    theirs = (reference.bias if bias else reference.weight).detach().numpy().ravel()
    assert np.abs(ours).max() <= 0.1
    assert abs(ours.std() - theirs.std()) < 0.1 * theirs.std()
    assert abs(ours.mean()) < 0.01


def test_xavier_uniform_has_torchs_bound() -> None:
    """The distribution is uniform within gain * sqrt(6 / (fan_in + fan_out))."""
    ours = np.asarray(jax_layers.xavier_uniform(gain=1e-2)(jax.random.key(0), (300, 200)))
    reference = torch.nn.init.xavier_uniform_(torch.empty(200, 300), gain=1e-2)
    assert np.abs(ours).max() == pytest.approx(float(reference.abs().max()), rel=1e-3)
    assert ours.std() == pytest.approx(float(reference.std()), rel=0.02)


@pytest.mark.parametrize("name", ["sac_n", "edac", "lb_sac"])
def test_the_first_of_equal_critics_gets_the_gradient(name: str) -> None:
    """If several critics of an ensemble share the smallest value, the first one gets the gradient."""
    q = np.array([[3.0, 1.0, 2.0, -0.0], [1.0, 1.0, 2.0, 0.0], [1.0, 5.0, 2.0, 1.0]])
    with both_in("float64"):
        theirs = torch.tensor(q, requires_grad=True)
        PAIRS[name].torch.smallest(theirs).sum().backward()
        ours = jax.grad(lambda values: PAIRS[name].jax.smallest(values).sum())(jnp.asarray(q))
        np.testing.assert_array_equal(PAIRS[name].jax.smallest(jnp.asarray(q)), q.min(axis=0))
    np.testing.assert_array_equal(ours, theirs.grad)
    np.testing.assert_array_equal(np.asarray(ours).sum(axis=0), 1.0)


def test_a_critic_without_a_slope_is_alike_to_none() -> None:
    """EDAC's norm has the gradient 0 at 0, not NaN; its closed form counts the pairs of different critics."""
    slopes = np.random.default_rng(0).normal(size=(4, 5, 3))
    slopes[1, 2] = 0.0
    with both_in("float64"):
        theirs = torch.tensor(slopes, requires_grad=True)
        value = PAIRS["edac"].torch.alikeness(theirs)
        value.backward()
        ours, gradient = jax.value_and_grad(PAIRS["edac"].jax.alikeness)(jnp.asarray(slopes))
    np.testing.assert_allclose(ours, value.item(), rtol=1e-14)
    # Near the zero vector the slope is that of a division by 1e-10, so errors are measured relative to their row's.
    np.testing.assert_allclose(gradient, theirs.grad, rtol=1e-12, atol=1e-14)
    lengths = np.maximum(np.linalg.norm(slopes, axis=-1), 1e-10)
    cosines = np.einsum("iba,jba,ib,jb->bij", slopes, slopes, 1 / lengths, 1 / lengths)
    different = ~np.eye(4, dtype=bool)
    assert float(ours) == pytest.approx(cosines[:, different].sum(axis=1).mean() / 3, rel=1e-8)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_priorities_follow_from_ratios_that_single_precision_rounds_to_0(framework: str) -> None:
    """In balanced replay, all ratios of a batch and of the dataset's rows may be far below the range of e^x."""
    twin, logs = getattr(PAIRS["finetune/balanced_replay"], framework), [[-1000.0], [-1001.0], [-1004.0], [-1008.0]]
    rows = torch.tensor(logs) if framework == "torch" else jnp.asarray(logs)
    batch = SimpleNamespace(observations=rows, actions=rows, compared_observations=rows, compared_actions=rows)
    hp = twin.Hyperparameters(batch_size=4, density_temperature=2.0)
    state = SimpleNamespace(hp=hp, density=lambda observations, actions: observations[:, 0])
    ratios = np.exp([0.0, -0.5, -2.0, -4.0])
    # An exponent of 500 has a last digit of 3e-5, and the quotient may be off by twice that.
    np.testing.assert_allclose(twin.BalancedReplay.ratios(state, batch), ratios / ratios[:2].mean(), rtol=6e-5)
