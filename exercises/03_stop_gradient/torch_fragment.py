"""TD3+BC's policy loss in PyTorch, for a linear policy under a linear critic."""

import torch
from torch import Tensor


def actor_loss(policy: Tensor, critic: Tensor, states: Tensor, actions: Tensor, alpha: float) -> Tensor:
    """The value of the policy's actions, scaled by its own size, against the distance to the data's actions.

    Policy (S, A), critic (S + A,), states (B, S), actions (B, A).
    """
    chosen = torch.tanh(states @ policy)
    q = torch.cat([states, chosen], axis=-1) @ critic
    weight = alpha / q.abs().mean().detach()
    return -weight * q.mean() + (chosen - actions).square().mean()
