"""Adam in PyTorch, after some steps."""

import torch
from torch import nn

LEARNING_RATE = 1e-3


def gradient(network: nn.Module, inputs: torch.Tensor) -> None:
    """Leaves the gradient of a small loss in the network's parameters."""
    network.zero_grad()
    network(inputs).square().mean().backward()


def trained(inputs: torch.Tensor, steps: int) -> tuple[nn.Linear, torch.optim.Adam]:
    """A layer (3, 2) and its optimiser after some steps."""
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    for _ in range(steps):
        gradient(network, inputs)
        optimizer.step()
    return network, optimizer
