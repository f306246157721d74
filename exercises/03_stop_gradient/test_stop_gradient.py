"""A loss and its gradient: the first may be right where the second is not."""

from types import ModuleType

import jax
import numpy as np
import torch

RNG = np.random.default_rng(0)
POLICY, CRITIC = RNG.normal(size=(4, 2)), RNG.normal(size=6)
GIVEN = (CRITIC, RNG.normal(size=(7, 4)), RNG.uniform(-1, 1, size=(7, 2)), 2.5)


def reference(fragment: ModuleType) -> tuple[float, np.ndarray]:
    policy = torch.tensor(POLICY, requires_grad=True)
    loss = fragment.actor_loss(policy, *(torch.as_tensor(x) for x in GIVEN))
    loss.backward()
    return loss.item(), policy.grad.numpy()


def test_the_loss_is_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """With the fault in it, too."""
    ours = exercise.actor_loss(POLICY, *GIVEN)
    np.testing.assert_allclose(ours, reference(fragment)[0], rtol=1e-12, err_msg="the loss differs")


def test_the_gradient_is_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """By the policy."""
    ours = jax.grad(exercise.actor_loss)(POLICY, *GIVEN)
    np.testing.assert_allclose(ours, reference(fragment)[1], rtol=1e-10, err_msg="the gradient differs")
