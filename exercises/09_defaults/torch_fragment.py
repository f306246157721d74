"""The pieces of a policy whose defaults are PyTorch's."""

import torch
from torch import Tensor, nn


def block(inputs: Tensor) -> Tensor:
    """A fresh LayerNorm over the last axis, then GELU: (B, W) to (B, W)."""
    return nn.functional.gelu(nn.LayerNorm(inputs.shape[-1])(inputs))


def deviation(log_std: Tensor) -> Tensor:
    """The standard deviation, its logarithm kept within [-20, 2]."""
    return torch.exp(torch.clamp(log_std, -20.0, 2.0))


def initial_bound(fan_in: int, fan_out: int) -> float:
    """The largest weight that a fresh layer can have."""
    weight = nn.Linear(fan_in, fan_out).weight
    return weight.abs().max().item()
