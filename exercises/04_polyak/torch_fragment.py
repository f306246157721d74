"""A target network that follows its network, in PyTorch: in place."""

import copy

from torch import nn


def make_target(network: nn.Module) -> nn.Module:
    """A copy of the network."""
    return copy.deepcopy(network)


def soft_update(target: nn.Module, network: nn.Module, tau: float) -> None:
    """The target moves a step of size tau towards the network."""
    for old, new in zip(target.parameters(), network.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)
