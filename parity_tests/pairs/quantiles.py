"""What DQN and CQL of finite actions have in common on the ladder: critics of means and of quantiles."""

from typing import Any

import torch

from parity_tests.pair import Mistake
from parity_tests.pictures import pictures
from shared.runs.encoders import NO_ENCODER

VARIANTS: dict[str, dict[str, Any]] = {
    "quantiles": {"critic": "qr", "n_quantiles": 5, "n_critics": 3, "double": True, "learning_rate": 3e-3},
    "images": {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (24,), "n_critics": 2, "adam_eps": 3e-3},
    "implicit": {"critic": "iqn", "n_quantiles": 6, "n_greedy_quantiles": 4, "embed_size": 8, "n_critics": 2},
}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every critic's quantiles."""
    return {
        f"{name} {number}": quantiles
        for name in ("critics", "acting")
        for number, quantiles in enumerate(getattr(twin, name)(batch.observations), start=1)
    }


def last_layer(member: Any) -> Any:
    """Of a critic, the layer that values actions."""
    return member.head if hasattr(member, "head") else member[-1]


def corner(trainer: Any) -> None:
    """Targets that prefer other actions than the critics do, and values of which some differ by more than 1.

    The targets' mean over states is 0, so no action is always the best and no critic always the smallest.
    """
    targets = trainer.critics_target
    for member in targets.members:
        last_layer(member).weight.data.mul_(-3.0)
    for member, quantiles in zip(targets.members, targets(_states(trainer)), strict=True):
        bias = last_layer(member).bias.data
        bias.view(quantiles.shape[1], -1).sub_(quantiles.detach().mean(axis=(0, 2))[:, None])
    for number, member in enumerate(trainer.critics.members):
        last_layer(member).bias.data.add_(0.5 * number)


def _states(trainer: Any) -> torch.Tensor:
    """Random observations (500, S), or images of the like."""
    first, generator = next(trainer.critics.parameters()), torch.Generator().manual_seed(0)
    if trainer.hp.encoder == NO_ENCODER:
        return torch.randn(500, first.shape[1], generator=generator, dtype=first.dtype)
    frames = torch.as_tensor(pictures(torch.randn(500, 11, generator=generator).numpy(), trainer.hp.encoder))
    return torch.cat([frames.roll(steps, 0) for steps in range(trainer.hp.frame_stack)], 1)


MISTAKES = [
    Mistake("fractions at the ends of their parts", "(bounds[1:] + bounds[:-1]) / 2.0", "bounds[1:]", "loss",
            "quantiles"),
    Mistake("mean over the critic's quantiles", "loss.sum(axis=-1).mean(axis=-1)", "loss.mean(axis=(2, 3))", "loss",
            "quantiles"),
    Mistake("reversed quantiles", "(error < 0.0)", "(error > 0.0)", "loss", "quantiles"),
    Mistake("absolute error of quantiles", "loss = abs(fractions[..., None, :] - (error < 0.0)) * loss",
            "loss = abs(fractions[..., None, :] - (error < 0.0)) * abs(error)", "loss", "quantiles"),
    Mistake("a fraction for each of the target's quantiles", "fractions[..., None, :]", "fractions[..., None]", "loss",
            "quantiles"),
    Mistake("each quantile against its own of the target", "target[:, :, None] - q[:, :, None]",
            "(target - q)[:, :, None]", "loss", "quantiles"),
    Mistake("outputs by quantile, then by action", "reshape(-1, self.action_dim, self.n_quantiles)",
            "reshape(-1, self.n_quantiles, self.action_dim).swapaxes(1, 2)", "forward", "quantiles"),
    Mistake("smallest quantiles of any critic", "(q * critic.T[..., None]).sum(axis=0)",
            "q.min(axis=0)", "loss", "quantiles"),
    Mistake("a critic chosen for the whole batch", "argmin(q.mean(axis=-1), axis=0)",
            "argmin(q.mean(axis=(1, 2)))[None].repeat(q.shape[1])", "loss", "quantiles"),
    Mistake("choice and value at the same fractions", "chooser(batch.next_observations, noise.choice)",
            "chooser(batch.next_observations, noise.target)", "loss", "implicit"),
    Mistake("the target at the fractions of the error", "target(batch.next_observations, noise.target)",
            "target(batch.next_observations, noise.error)", "loss", "implicit"),
    Mistake("the error's pass at the target's fractions", "critics(batch.observations, noise.error)",
            "critics(batch.observations, noise.target)", "loss", "implicit"),
    Mistake("the error weighed by the target's fractions", "fractions(self.hp, q, noise.error)",
            "fractions(self.hp, q, noise.target)", "loss", "implicit"),
    Mistake("one draw of fractions for all passes", "for each in keys]", "for each in [keys[0]] * len(keys)]", "draws",
            "implicit"),
]  # fmt: skip
