"""Two loops that append to a tensor, in PyTorch."""

import torch
from torch import Tensor


def returns_to_go(rewards: Tensor, discount: float) -> Tensor:
    """What is still to come at each step of an episode, its own reward included: (T,), for rewards (T,)."""
    value, returns = torch.zeros(()), torch.zeros(0)
    for reward in rewards.flip(0):
        value = reward + discount * value
        returns = torch.cat([returns, value[None]])
    return returns.flip(0)


def rollout(policy: Tensor, model: Tensor, state: Tensor, horizon: int) -> Tensor:
    """The states (H + 1, S) of a world model, under a policy that acts on the mean of all states so far.

    Policy (S, A), model (S + A, S), first state (S,).
    """
    history = state[None]
    for _ in range(horizon):
        action = torch.tanh(history.mean(0) @ policy)
        state = torch.cat([state, action]) @ model
        history = torch.cat([history, state[None]])
    return history
