"""Seeds in PyTorch: a process for each, with its own device. No process sends anything to another."""

import torch
from torch import Tensor


def train(weights: Tensor, states: Tensor, rewards: Tensor, rows: Tensor) -> Tensor:
    """The weights (S,) after a step of gradient descent on each batch of rows (U, B)."""
    for batch in rows:
        errors = states[batch] @ weights - rewards[batch]
        weights = weights - 0.1 * (errors[:, None] * states[batch]).mean(0)
    return weights


def draw(seed: int, num_updates: int, batch_size: int, dataset_size: int) -> Tensor:
    """A seed's batches (U, B)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(dataset_size, (num_updates, batch_size), generator=generator)
