"""A penalty that cancels itself."""

from collections.abc import Callable

import torch
from torch import Tensor, exp, square
from torch.optim import Optimizer

from lessons.measured import Figure

Backward = Callable[[Tensor, Tensor, Tensor, Optimizer], None]


def wrong(value_loss: Tensor, excess: Tensor, log_alpha: Tensor, multiplier: Optimizer) -> None:
    penalty = exp(log_alpha) * excess
    multiplier.zero_grad()
    (-penalty).backward(retain_graph=True)  # this reaches the policy too
    multiplier.step()
    (value_loss + penalty).backward()


def right(value_loss: Tensor, excess: Tensor, log_alpha: Tensor, multiplier: Optimizer) -> None:
    multiplier.zero_grad()
    (-exp(log_alpha) * excess.detach()).backward()
    multiplier.step()
    (value_loss + exp(log_alpha.detach()) * excess).backward()


def check(backward: Backward) -> None:
    action, log_alpha = (torch.tensor(number, requires_grad=True) for number in (2.0, 0.0))
    backward(-action, square(action), log_alpha, torch.optim.SGD([log_alpha], lr=0.1))
    assert log_alpha > 0.0, "the multiplier does not grow"
    assert action.grad is not None
    assert action.grad > 0.0, "the penalty, of slope 4, does not outweigh the value, of slope 1"


def _end(backward: Backward) -> tuple[float, float]:
    """The policy's action after a training, and the multiplier; a critic rises for ever, and the data's action is 0."""
    action, log_alpha = (torch.tensor(0.0, requires_grad=True) for _ in range(2))
    policy, multiplier = (torch.optim.Adam([number], lr=0.01) for number in (action, log_alpha))
    for _ in range(500):
        policy.zero_grad()
        backward(-action, square(action) - 0.05, log_alpha, multiplier)
        policy.step()
    return action.item(), exp(log_alpha).item()


def measure() -> list[Figure]:
    (far, heavy), (near, light) = map(_end, (wrong, right))
    return [
        Figure("squared distance from the data's action after 500 updates; 0.05 is allowed", far**2, near**2),
        Figure("the multiplier at the end", heavy, light),
    ]
