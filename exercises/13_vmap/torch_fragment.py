"""An ensemble of E critics in PyTorch, as SAC-N has it: one batched product for each layer."""

import torch
from torch import Tensor


def values(layers: list[tuple[Tensor, Tensor]], states: Tensor, actions: Tensor) -> Tensor:
    """Q(s, a) under every critic: (E, B), for states (B, S) and actions (B, A).

    Each layer has a weight (E, in, out) and a bias (E, out).
    """
    hidden = torch.cat([states, actions], dim=-1)
    for weight, bias in layers[:-1]:
        hidden = torch.relu(hidden @ weight + bias[:, None])
    weight, bias = layers[-1]
    return (hidden @ weight + bias[:, None]).squeeze(-1)
