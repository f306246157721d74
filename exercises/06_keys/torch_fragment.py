"""What an update draws, in PyTorch: every call moves the global generator on."""

import torch
from torch import Tensor


def draw(batch_size: int, dataset_size: int, action_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Batch indices (B,), noise of the target policy (B, A), and noise of the policy (B, A)."""
    indices = torch.randint(dataset_size, (batch_size,))
    target = torch.randn(batch_size, action_dim)
    actor = torch.randn(batch_size, action_dim)
    return indices, target, actor
