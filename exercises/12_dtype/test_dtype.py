"""The rates of a warm-up, and the weights that come of them."""

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import torch

RNG = np.random.default_rng(0)
WEIGHTS, GRADIENTS = RNG.normal(size=3), RNG.normal(size=(10, 3))


def reference(fragment: ModuleType) -> tuple[np.ndarray, list[float]]:
    weights, rates = fragment.descend(torch.as_tensor(WEIGHTS), torch.as_tensor(GRADIENTS))
    return weights.numpy(), rates


def rates(exercise: ModuleType) -> np.ndarray:
    # An int32 count, as optax hands it over
    return np.asarray(jax.jit(jax.vmap(exercise.rate))(np.arange(10, dtype=np.int32)))


def test_the_warm_up_is_at_pytorch_s_step(exercise: ModuleType, fragment: ModuleType) -> None:
    """From the first update to the first at the full rate, and after it."""
    for count, (mine, theirs) in enumerate(zip(rates(exercise), reference(fragment)[1], strict=True)):
        wrong = f"the rate after {count} updates is {mine:.4f}, PyTorch's is {theirs:.4f}"
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, err_msg=wrong)


def test_the_rates_are_of_double_precision(exercise: ModuleType) -> None:
    """As the weights are."""
    dtype = rates(exercise).dtype
    assert dtype == np.float64, f"the rates are {dtype} where double precision is switched on"


def test_the_weights_are_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """After ten updates, to the last digits: a rate that was rounded on its way stays rounded."""
    ours = exercise.descend(jnp.asarray(WEIGHTS), jnp.asarray(GRADIENTS))
    largest = np.abs(ours - reference(fragment)[0]).max()
    assert largest < 1e-12, f"the weights differ by {largest:.0e} after ten updates"
