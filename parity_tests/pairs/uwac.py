"""UWAC on the ladder."""

import math
from typing import Any

import numpy as np
import torch

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs.plas import AS_WARM

WIDTHS = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "vae_hidden_dims": (32, 32)}
SMALL = WIDTHS | {"n_target_samples": 3, "n_passes": 4, "n_action_samples": 5}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output; the decoder's for codes on both sides of the mean, the critics' without dropout."""
    mean, std = twin.encoder(batch.observations, batch.actions)
    below, raw_below = twin.decoder(batch.observations, mean - std)
    above, raw_above = twin.decoder(batch.observations, mean + std)
    action_mean, action_std = twin.actor(batch.observations)
    return {
        "code's mean": mean,
        "code's std": std,
        "below": below,
        "above": above,
        "below, raw": raw_below,
        "above, raw": raw_above,
        "action's mean": action_mean,
        "action's std": action_std,
        "critic": twin.critic(batch.observations, batch.actions, twin.directions(), [[1.0, 1.0]] * 2),
    }


def corner(trainer: Any) -> None:
    """Moves directions away from the largest stretch; without spectral norm, scales values to make critics doubt."""
    generator = torch.Generator().manual_seed(0)
    for directions in (trainer.directions, trainer.target_directions):
        for vector in directions.parameters():
            moved = vector.data + torch.randn(vector.shape, generator=generator) / len(vector) ** 0.5
            vector.data = moved / moved.norm()
    for critic in (*trainer.critic.members, *trainer.critic_target.members):
        if not critic.spectral_norm:
            critic.net[-1].weight.data *= 300.0
            critic.net[-1].bias.data *= 300.0


def warms_up(config: Any) -> bool:
    """Whether an update after the warm ones is still in UWAC's own warm-up."""
    return config.imitation_steps >= AS_WARM


def statics(config: Any, step: int) -> dict[str, Any]:
    """Whether the update is part of the warm-up."""
    return {"warms_up": step <= config.imitation_steps}


def warm_updates(config: Any, start: int, num_updates: int) -> dict[str, Any]:
    """The number of warm-up updates in an interval."""
    return {"warm_updates": min(max(config.imitation_steps - start, 0), num_updates)}


class Adapter(Pair):
    """This pair's overrides."""

    draws_inside = True
    # Also the variance of the target's best action
    gathers = 2
    compiled_in = "float32"

    outputs = staticmethod(outputs)

    corner = staticmethod(corner)

    def uses(self, loss: str, config: Any) -> bool:
        return {"mmd_loss": warms_up(config), "actor_loss": not warms_up(config)}.get(loss, True)

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {"mmd": rng.random(size)}

    update_statics = staticmethod(statics)

    interval_statics = staticmethod(warm_updates)

    def drawn_inside(self, twin: Any, noise: Any, hp: Any) -> Any:
        return noise._replace(dropout=twin.draw_dropout(noise.dropout, hp))


PAIR = Adapter(
    name="uwac",
    title="UWAC",
    family=Family.UNCERTAINTY,
    use="The data is narrow, and you want critics that know their own uncertainty, through dropout.",
    paper="Wu et al. 2021",
    url="https://arxiv.org/abs/2105.08140",
    benchmark_updates=4,
    variants={
        "default": SMALL | {"imitation_steps": 0, "mmd_sigma": 1.0},
        # In the authors' form
        "authors": SMALL
        | {"copy_targets": False, "variance_at_best": False, "imitation_steps": 2, "lam": 0.3, "drop_rate": 0.4}
        | {"discount": 0.9, "tau": 0.1, "kl_weight": 2.0, "alpha_threshold": 0.3, "initial_alpha": 2.0}
        | {"n_mmd_action_samples": 3, "mmd_kernel": "laplacian", "mmd_sigma": 0.5, "weigh_actor": False}
        | {"actor_lr": 3e-4, "critic_lr": 2e-4, "vae_lr": 5e-4, "alpha_lr": 3e-3}
        | {"q_penalty": 0.1, "variance_scale": 0.2, "clip_bottom": 0.1, "clip_top": 0.9},
        # The other weight function, without spectral norm
        "inverse": SMALL
        | {"spectral_norm": False, "exp_weight": False, "exp_penalty": True, "q_penalty": 0.5, "imitation_steps": 0}
        | {"variance_scale": 0.05, "clip_bottom": 0.2, "clip_top": 0.8},
        # At the end of the warm-up, the MMD's weight at its upper bound
        "warm": SMALL | {"imitation_steps": AS_WARM, "initial_alpha": math.exp(10.0)},
        # With its weight at the lower one
        "light": SMALL | {"imitation_steps": 0, "initial_alpha": math.exp(-5.0), "alpha_threshold": 2.0},
    },
    settings={
        "run": {"n_target_samples": 2, "n_passes": 2, "n_action_samples": 2},
        "full size": {"imitation_steps": 3, "n_target_samples": 2, "n_passes": 3, "n_action_samples": 3},
        # A tenth of the passes: an update of the authors' size takes seconds.
        "timed": {"imitation_steps": 0, "n_passes": 10},
    },
)
