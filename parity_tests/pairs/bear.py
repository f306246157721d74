"""BEAR on the ladder."""

import math
from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs.plas import AS_WARM

SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "vae_hidden_dims": (32, 32)}
ENTROPY = {"temperature_lr": 3e-3, "initial_temperature": 0.5}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output; the decoder's for codes on both sides of the encoder's mean."""
    mean, std = twin.encoder(batch.observations, batch.actions)
    below, compared_below = twin.decoder(batch.observations, mean - std)
    above, compared_above = twin.decoder(batch.observations, mean + std)
    action_mean, action_std = twin.actor(batch.observations)
    return {
        "code's mean": mean,
        "code's std": std,
        "below": below,
        "above": above,
        "below, as compared": compared_below,
        "above, as compared": compared_above,
        "action's mean": action_mean,
        "action's std": action_std,
        "critic": twin.critic(batch.observations, batch.actions),
    }


def warms_up(config: Any) -> bool:
    """Whether an update after the warm ones is still in BEAR's own warm-up."""
    return config.imitation_steps >= AS_WARM


def temp_learns(config: Any) -> bool:
    """Whether an update after the warm ones trains the temperature."""
    return config.temperature_lr > 0.0 if config.mmd_in_actor else not warms_up(config)


def statics(config: Any, step: int) -> dict[str, Any]:
    """Whether the update is part of the warm-up."""
    return {"warms_up": step <= config.imitation_steps}


def warm_updates(config: Any, start: int, num_updates: int) -> dict[str, Any]:
    """The number of warm-up updates in an interval."""
    return {"warm_updates": min(max(config.imitation_steps - start, 0), num_updates)}


class Adapter(Pair):
    """This pair's overrides."""

    # Also the log-density of the target's best action
    gathers = 2
    compiled_in = "float32"

    outputs = staticmethod(outputs)

    draw_statics = staticmethod(statics)

    update_statics = staticmethod(statics)

    interval_statics = staticmethod(warm_updates)

    def uses(self, loss: str, config: Any) -> bool:
        warm, ours = warms_up(config), config.mmd_in_actor
        used = {
            "temp_loss": temp_learns(config),
            "alpha_loss": ours or not warm,
            "mmd_loss": warm,
            "sac_loss": not ours and not warm,
            "actor_loss": ours and not warm,
        }
        return used.get(loss, True)


PAIR = Adapter(
    name="bear",
    title="BEAR",
    family=Family.CONSTRAINT,
    use="The policy has to stay within the data's support, but can ignore its density.",
    paper="Kumar et al. 2019",
    url="https://arxiv.org/abs/1906.00949",
    benchmark_updates=40,
    variants={
        "default": SMALL | ENTROPY | {"imitation_steps": 0, "n_action_samples": 5, "mmd_sigma": 1.0},
        # In the form of d3rlpy 2.8.1
        "other": SMALL
        | ENTROPY
        | {"vae_tanh": False, "mmd_in_actor": False, "imitation_steps": 2, "lam": 0.3, "n_critics": 3}
        | {"n_action_samples": 4, "n_target_samples": 3, "n_mmd_action_samples": 3, "discount": 0.9, "tau": 0.1}
        | {"mmd_kernel": "gaussian", "mmd_sigma": 0.5, "actor_lr": 3e-4, "critic_lr": 2e-4, "vae_lr": 5e-4}
        | {"kl_weight": 2.0, "alpha_threshold": 0.3, "initial_alpha": 2.0},
        # At the end of the warm-up, without entropy, the MMD's weight at its upper bound
        "warm": SMALL | {"imitation_steps": AS_WARM, "n_action_samples": 3, "initial_alpha": math.exp(10.0)},
        # With its weight at the lower one
        "light": SMALL
        | {"imitation_steps": 0, "n_action_samples": 3, "initial_alpha": math.exp(-5.0), "alpha_threshold": 2.0},
    },
    settings={
        "full size": {"imitation_steps": 3, "n_action_samples": 10},
        "timed": {"imitation_steps": 0},
    },
)
