"""A pessimistic value under an ensemble of linear critics, in PyTorch."""

from torch import Tensor


def pessimistic_value(critics: Tensor, states: Tensor, beta: float) -> Tensor:
    """The ensemble's mean value less `beta` deviations, over all rows: a number, for critics (E, S) and states (B, S).

    Where all critics agree the deviation is 0, and PyTorch gives `std` the gradient 0.
    """
    q = states @ critics.T
    return (q.mean(-1) - beta * q.std(-1)).mean()
