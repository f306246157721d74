"""The value and its gradient, where critics differ and where they agree."""

from types import ModuleType

import jax
import numpy as np
import torch

RNG = np.random.default_rng(0)
CRITICS, STATES = RNG.normal(size=(4, 3)), RNG.normal(size=(5, 3))
# The weight of the last feature is the same in all critics, and one row has nothing but that feature.
CRITICS[:, -1] = 0.5
AGREED = np.vstack([STATES[:2], [0.0, 0.0, 1.0], STATES[3:]])
BETA = 0.5


def reference(fragment: ModuleType, states: np.ndarray) -> tuple[float, np.ndarray]:
    critics = torch.tensor(CRITICS, requires_grad=True)
    value = fragment.pessimistic_value(critics, torch.as_tensor(states), BETA)
    value.backward()
    return value.item(), critics.grad.numpy()


def test_the_value_is_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """With the fault in it, too; what keeps the root from 0 must not show."""
    for states in (STATES, AGREED, 0 * STATES):
        ours = jax.jit(exercise.pessimistic_value)(CRITICS, states, BETA)
        np.testing.assert_allclose(ours, reference(fragment, states)[0], rtol=1e-12, err_msg="the value differs")


def test_the_gradient_is_pytorch_s_where_critics_differ(exercise: ModuleType, fragment: ModuleType) -> None:
    """The deviation is differentiated."""
    ours = jax.jit(jax.grad(exercise.pessimistic_value))(CRITICS, STATES, BETA)
    np.testing.assert_allclose(ours, reference(fragment, STATES)[1], rtol=1e-10, err_msg="the gradient differs")


def test_the_gradient_is_pytorch_s_where_critics_agree(exercise: ModuleType, fragment: ModuleType) -> None:
    """One row of five."""
    ours = jax.jit(jax.grad(exercise.pessimistic_value))(CRITICS, AGREED, BETA)
    missing = np.isnan(ours).sum()
    assert missing == 0, f"{missing} of {ours.size} entries of the gradient are NaN"
    wrong = "the gradient differs where all critics agree in a row"
    np.testing.assert_allclose(ours, reference(fragment, AGREED)[1], rtol=1e-10, err_msg=wrong)
