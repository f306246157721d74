"""A critic's regression to its target, in PyTorch."""

from torch import Tensor


def critic_loss(values: Tensor, rewards: Tensor, next_values: Tensor, discount: float) -> Tensor:
    """The squared error of values (B, 1), as a last layer gives them; rewards (B,) and next values (B, 1)."""
    target = rewards + discount * next_values.squeeze(-1)
    return (values.squeeze(-1) - target).square().mean()
