"""What pairs with critics of means or quantiles have in common on the ladder, those of finite actions above all."""

from typing import Any

import torch

from parity_tests.pair import Mistake
from parity_tests.pictures import pictures
from shared.runs.encoders import NO_ENCODER

# Of continuous actions
CONTINUOUS: dict[str, dict[str, Any]] = {
    "quantiles": {"critic": "qr", "n_quantiles": 5, "n_critics": 3, "critic_lr": 3e-3},
    "implicit": {"critic": "iqn", "n_quantiles": 6, "n_greedy_quantiles": 4, "embed_size": 8, "n_critics": 2},
}
# Of finite actions
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


# In the loss of quantiles: those of continuous actions have them too
LOSS_MISTAKES = [
    Mistake("fractions at the ends of their parts", "(bounds[1:] + bounds[:-1]) / 2.0", "bounds[1:]", "loss",
            "quantiles"),
    Mistake("mean over the critic's quantiles", "loss.sum(axis=-1).mean(axis=-1)", "loss.mean(axis=(2, 3))", "loss",
            "quantiles"),
    Mistake("reversed quantiles", "(error < 0.0)", "(error > 0.0)", "loss", "quantiles"),
    Mistake("a fraction for each of the target's quantiles", "fractions[..., None, :]", "fractions[..., None]", "loss",
            "quantiles"),
    Mistake("each quantile against its own of the target", "target[:, :, None] - q[:, :, None]",
            "(target - q)[:, :, None]", "loss", "quantiles"),
]  # fmt: skip

# In the choice of one of several critics
CHOICE_MISTAKES = [
    Mistake("smallest quantiles of any critic", "(q * critic.T[..., None]).sum(axis=0)",
            "q.min(axis=0)", "loss", "quantiles"),
    Mistake("a critic chosen for the whole batch", "argmin(q.mean(axis=-1), axis=0)",
            "argmin(q.mean(axis=(1, 2)))[None].repeat(q.shape[1])", "loss", "quantiles"),
]  # fmt: skip

MISTAKES = [
    *LOSS_MISTAKES,
    *CHOICE_MISTAKES,
    Mistake("absolute error of quantiles", "loss = abs(fractions[..., None, :] - (error < 0.0)) * loss",
            "loss = abs(fractions[..., None, :] - (error < 0.0)) * abs(error)", "loss", "quantiles"),
    Mistake("outputs by quantile, then by action", "reshape(-1, self.action_dim, self.n_quantiles)",
            "reshape(-1, self.n_quantiles, self.action_dim).swapaxes(1, 2)", "forward", "quantiles"),
    Mistake("choice and value at the same fractions", "chooser(batch.next_observations, noise.choice)",
            "chooser(batch.next_observations, noise.target)", "loss", "implicit"),
    Mistake("the target at the fractions of the error", "target(batch.next_observations, noise.target)",
            "target(batch.next_observations, noise.error)", "loss", "implicit"),
    Mistake("the error's pass at the target's fractions", "critics(batch.observations, noise.error)",
            "critics(batch.observations, noise.target)", "loss", "implicit"),
    Mistake("the error weighed by the target's fractions", "fractions(self.hp, q, noise.error)",
            "fractions(self.hp, q, noise.target)", "loss", "implicit"),
    Mistake("one draw of fractions for all passes", "for each in keys", "for each in [keys[0]] * len(keys)", "draws",
            "implicit"),
]  # fmt: skip

# Of continuous actions, and of SAC's two critics too
ANY_CONTINUOUS_MISTAKES = [
    *LOSS_MISTAKES,
    Mistake("absolute error of quantiles", "(error < 0.0)) * huber(error)", "(error < 0.0)) * abs(error)", "loss",
            "quantiles"),
    Mistake("squared error of quantiles", 'if self.hp.critic == "mean":', 'if self.hp.critic != "iqn":', "loss",
            "quantiles"),
    Mistake("mean over critics of quantiles", "target).mean(axis=1).sum()", "target).mean()", "loss", "quantiles"),
    Mistake("as many even fractions as in an update", "hp.embed_size, hp.n_greedy_quantiles)",
            "hp.embed_size, hp.n_quantiles)", "loss", "implicit"),
    Mistake("the error's pass at the target's fractions", "batch.actions, noise.error_fractions)",
            "batch.actions, noise.target_fractions)", "loss", "implicit"),
    Mistake("the error weighed by the target's fractions", "fractions(q, noise.error_fractions)",
            "fractions(q, noise.target_fractions)", "loss", "implicit"),
    Mistake("implicit quantiles weighed as fixed ones", "fractions(q, noise.error_fractions)", "fractions(q, None)",
            "loss", "implicit"),
    Mistake("one draw of fractions for both passes", "for each in fraction_keys", "for each in fraction_keys[:1] * 2",
            "draws", "implicit"),
    Mistake("one draw of fractions for all critics", "jax.random.uniform(each, shape)",
            "jnp.broadcast_to(jax.random.uniform(each, shape[1:]), shape)", "draws", "implicit"),
]  # fmt: skip

CONTINUOUS_MISTAKES = [
    *ANY_CONTINUOUS_MISTAKES,
    *CHOICE_MISTAKES,
    Mistake("the policy raises the highest quantile", "None, 1).mean(axis=-1).squeeze(0)", "None, 1)[0, :, -1]", "loss",
            "quantiles"),
    Mistake("the policy's values at drawn fractions", "actor(batch.observations), None, 1)",
            "actor(batch.observations), jnp.linspace(0.1, 0.8, 6 * len(batch.rewards)).reshape(1, -1, 6), 1)", "loss",
            "implicit"),
    Mistake("even fractions in the target", "next_actions, noise.target_fractions)", "next_actions)", "loss",
            "implicit"),
    Mistake("the target at the fractions of the error", "next_actions, noise.target_fractions)",
            "next_actions, noise.error_fractions)", "loss", "implicit"),
    Mistake("the first critic's fractions for all", "zip(members, given, strict=True)",
            "zip(members, [given[0]] * len(members), strict=True)", "loss", "implicit"),
]  # fmt: skip
