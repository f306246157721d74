"""The same pieces in PyTorch."""

import torch
from torch import Tensor, nn

# A batch: states (B, S), actions (B, A), rewards (B,), next states (B, S)
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def head(width: int, action_dim: int) -> nn.Linear:
    """A policy's last layer."""
    layer = nn.Linear(width, action_dim)
    nn.init.xavier_uniform_(layer.weight, gain=0.01)
    nn.init.zeros_(layer.bias)
    return layer


def block(inputs: Tensor) -> Tensor:
    """GELU, then a fresh LayerNorm over the last axis: (B, W) to (B, W)."""
    return nn.LayerNorm(inputs.shape[-1])(nn.functional.gelu(inputs))


def cut(actions: Tensor) -> Tensor:
    """Actions, clipped to [-1, 1]."""
    return torch.clamp(actions, -1.0, 1.0)


def q(critic: Tensor, states: Tensor, actions: Tensor) -> Tensor:
    """The values (B,) under a critic (S + A,)."""
    width = states.shape[1]
    return states @ critic[:width] + actions @ critic[width:] - actions.square().sum(dim=-1)


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def update(policy: Tensor, critic: Tensor, target: Tensor, batch: Batch) -> None:
    """One step of policy (S, A) and critic (S + A,) at rate 0.1, and a step of size 0.1 of the target, in place."""
    states, actions, rewards, next_states = batch
    policy_optimizer, critic_optimizer = (torch.optim.SGD([weights], lr=0.1) for weights in (policy, critic))
    with torch.no_grad():
        next_q = q(target, next_states, cut(next_states @ policy))
    critic_loss = (q(critic, states, actions) - rewards - 0.99 * next_q).square().mean()
    gradient_step(critic_loss, critic_optimizer)
    policy_loss = -q(critic.detach(), states, cut(states @ policy)).mean()
    gradient_step(policy_loss, policy_optimizer)
    target.copy_(0.9 * target + 0.1 * critic.detach())
