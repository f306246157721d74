"""Layers that PyTorch lacks. `shared/frameworks/jax_layers.py` has the same names for JAX, except `probe`."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, cos, nn, relu

from shared.envs.spaces import Shape, axes


def dropout_mask(rate: float, shape: Sequence[int], device: torch.device) -> Tensor:
    """A mask to multiply by: 0 with probability `rate`, else 1 / (1 - rate); draws as `torch.nn.functional.dropout`."""
    return torch.empty(*shape, device=device).bernoulli_(1.0 - rate).div_(1.0 - rate)


def probe(*shapes: Shape) -> None:
    """Draws the random inputs on which d3rlpy tries an encoder to find its width: two rows of each shape.

    Only later draws depend on these, such as the weights of the next layer.
    """
    for shape in shapes:
        torch.rand(2, *axes(shape))


def pick(actions: Tensor, chosen: Tensor) -> Tensor:
    """Selects in each row of the actions (B, n, A) the one at index `chosen` (B,); returns (B, A)."""
    # Exporters do not support torch.take_along_dim.
    return actions.gather(1, chosen[:, None, None].expand(-1, 1, actions.shape[2])).squeeze(1)


class ImplicitQuantiles(nn.Module):
    """Quantiles of each action's return at any fraction: a fraction's cosines weigh the features of the state.

    The cosines start at frequency 1, as in d3rlpy. The paper's also include frequency 0, which acts as a bias.

    Dabney et al., Implicit Quantile Networks for Distributional Reinforcement Learning, 2018,
    https://arxiv.org/abs/1806.06923
    """

    def __init__(self, hidden: nn.Module, width: int, action_dim: int, embed_size: int, n_greedy: int) -> None:
        """Hidden layers with `width` features, `embed_size` cosines, and `n_greedy` fractions if none are given."""
        super().__init__()
        self.hidden = hidden
        self.head = nn.Linear(width, action_dim)
        self.embedding = nn.Linear(embed_size, width)
        self.embed_size, self.n_greedy = embed_size, n_greedy

    def forward(self, observations: Tensor, fractions: Tensor | None = None) -> Tensor:
        """The quantiles (B, A, K) in observations (B, S) at fractions (B, K), by default at even ones from 0 to 1."""
        features = self.hidden(observations)
        like = {"dtype": features.dtype, "device": features.device}
        if fractions is None:
            fractions = torch.linspace(0.0, 1.0, self.n_greedy, **like)
        frequencies = math.pi * torch.arange(1, self.embed_size + 1, **like)
        weights = relu(self.embedding(cos(fractions[..., None] * frequencies)))
        return self.head(features[:, None] * weights).transpose(1, 2)


class Scalar(nn.Module):
    """A single trainable number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(value))

    def forward(self) -> Tensor:
        """The number, as a tensor without axes."""
        return self.constant
