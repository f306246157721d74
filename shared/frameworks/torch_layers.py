"""What PyTorch's own layers lack. `shared/frameworks/jax_layers.py` holds the same names for JAX, but for `probe`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def dropout_mask(rate: float, shape: Sequence[int], device: torch.device) -> Tensor:
    """A mask to multiply by: 0 at the rate given, else 1 / (1 - rate); the draw of `torch.nn.functional.dropout`."""
    return torch.empty(*shape, device=device).bernoulli_(1.0 - rate).div_(1.0 - rate)


def probe(*sizes: int) -> None:
    """Draws what d3rlpy tries an encoder on to learn its width: two uniform rows of each of these sizes.

    The draws decide nothing but what is drawn after them, such as the weights of the next layer.
    """
    for size in sizes:
        torch.rand(2, size)


def pick(actions: Tensor, chosen: Tensor) -> Tensor:
    """Of the actions (B, n, A) in each row the one at the place (B,) that is chosen, (B, A)."""
    # Exporters do not follow torch.take_along_dim.
    return actions.gather(1, chosen[:, None, None].expand(-1, 1, actions.shape[2])).squeeze(1)


class Scalar(nn.Module):
    """A single trained number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(value))

    def forward(self) -> Tensor:
        """The number, as a tensor without axes."""
        return self.constant
