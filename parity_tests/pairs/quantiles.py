"""Shared parts of the adapters for pairs whose critics estimate means or quantiles, mostly with finite actions."""

from typing import Any

import torch

from parity_tests.pictures import pictures
from shared.runs.encoders import NO_ENCODER

# Variants for continuous actions
CONTINUOUS: dict[str, dict[str, Any]] = {
    "quantiles": {"critic": "qr", "n_quantiles": 5, "n_critics": 3, "critic_lr": 3e-3},
    "implicit": {"critic": "iqn", "n_quantiles": 6, "n_greedy_quantiles": 4, "embed_size": 8, "n_critics": 2},
}
# Variants for finite actions
VARIANTS: dict[str, dict[str, Any]] = {
    "quantiles": {"critic": "qr", "n_quantiles": 5, "n_critics": 3, "double": True, "learning_rate": 3e-3},
    "images": {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (24,), "n_critics": 2, "adam_eps": 3e-3},
    "implicit": {"critic": "iqn", "n_quantiles": 6, "n_greedy_quantiles": 4, "embed_size": 8, "n_critics": 2},
}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every critic's quantiles."""
    return {
        f"{name} {number}": quantiles
        for name in ("critic", "acting")
        for number, quantiles in enumerate(getattr(twin, name)(batch.observations), start=1)
    }


def last_layer(member: Any) -> Any:
    """The layer of a critic that computes the actions' values."""
    return member.head if hasattr(member, "head") else member[-1]


def corner(trainer: Any) -> None:
    """Makes targets prefer other actions than the critics do, and some values differ by more than 1.

    The targets' mean over states is 0, so that no action is always the best and no critic always the smallest.
    """
    targets = trainer.critic_target
    for member in targets.members:
        last_layer(member).weight.data.mul_(-3.0)
    for member, quantiles in zip(targets.members, targets(_states(trainer)), strict=True):
        bias = last_layer(member).bias.data
        bias.view(quantiles.shape[1], -1).sub_(quantiles.detach().mean(axis=(0, 2))[:, None])
    for number, member in enumerate(trainer.critic.members):
        last_layer(member).bias.data.add_(0.5 * number)


def _states(trainer: Any) -> torch.Tensor:
    """Random observations (500, S), or images that show such vectors."""
    first, generator = next(trainer.critic.parameters()), torch.Generator().manual_seed(0)
    if trainer.hp.encoder == NO_ENCODER:
        return torch.randn(500, first.shape[1], generator=generator, dtype=first.dtype)
    frames = torch.as_tensor(pictures(torch.randn(500, 11, generator=generator).numpy(), trainer.hp.encoder))
    return torch.cat([frames.roll(steps, 0) for steps in range(trainer.hp.frame_stack)], 1)
