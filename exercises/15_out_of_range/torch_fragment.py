"""What is read at the end of an episode, in PyTorch."""

import torch
from torch import Tensor


def targets(rewards: Tensor, values: Tensor, discount: float) -> Tensor:
    """Each step's reward and the discounted value of the next step: (T,), for rewards and values (T,).

    The last step has no next one: its target is its reward.
    """
    next_values = torch.cat([values[1:], torch.zeros(1)])
    return rewards + discount * next_values


def window(states: Tensor, start: int, length: int) -> Tensor:
    """The states (L, S) from `start` on, of an episode's (T, S), with rows of zeros where the episode has ended.

    This is what Decision Transformer learns from.
    """
    seen = states[start : start + length]
    padding = torch.zeros(length - len(seen), states.shape[-1])
    return torch.cat([seen, padding])
