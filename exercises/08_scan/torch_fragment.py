"""A loop over updates in PyTorch: the weights (S,) of a linear model follow rows of a dataset."""

from torch import Tensor


def update(weights: Tensor, states: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
    """One step of gradient descent on a batch, states (B, S) and rewards (B,); the loss before it."""
    errors = states @ weights - rewards
    return weights - 0.1 * (errors[:, None] * states).mean(0), errors.square().mean()


def train(weights: Tensor, states: Tensor, rewards: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The weights after an update for each row of indices (N, B), and the mean loss."""
    losses = []
    for rows in indices:
        weights, loss = update(weights, states[rows], rewards[rows])
        losses.append(loss)
    return weights, sum(losses) / len(losses)
