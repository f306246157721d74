"""Decision Transformer's warm-up, in PyTorch."""

from collections.abc import Iterable

import torch
from torch import Tensor

RATE, WARMUP = 0.1, 7


def descend(weights: Tensor, gradients: Iterable[Tensor]) -> tuple[Tensor, list[float]]:
    """The weights after a step along each of the gradients, and the rates of these steps."""
    weights = weights.clone()
    optimizer = torch.optim.SGD([weights], lr=RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: min((count + 1) / WARMUP, 1.0))
    rates = []
    for gradient in gradients:
        weights.grad = gradient
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return weights, rates
