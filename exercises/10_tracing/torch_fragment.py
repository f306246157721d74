"""A policy that imitates at first, as CQL's can, and then follows a critic, in PyTorch."""

import torch
from torch import Tensor


def actor_loss(
    policy: Tensor, critic: Tensor, states: Tensor, actions: Tensor, step: int, bc_steps: int, normalize: bool
) -> Tensor:
    """Imitation before update `bc_steps`, the critic's value from there on, divided by its own size if `normalize`.

    Policy (S, A), critic (S + A,), states (B, S), actions (B, A).
    """
    chosen = torch.tanh(states @ policy)
    if step < bc_steps:
        return (chosen - actions).square().mean()
    q = torch.cat([states, chosen], axis=-1) @ critic
    if normalize:
        q = q / q.abs().mean().detach()
    return -q.mean()


def update(
    policy: Tensor, critic: Tensor, states: Tensor, actions: Tensor, step: int, bc_steps: int, normalize: bool
) -> Tensor:
    """The policy after a step of gradient descent; `step` updates were made before it."""
    policy = policy.detach().requires_grad_()
    loss = actor_loss(policy, critic, states, actions, step, bc_steps, normalize)
    (gradient,) = torch.autograd.grad(loss, policy)
    return (policy - 0.1 * gradient).detach()
