"""SPOT, offline to online, on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs.finetune_iql import FILLED

SMALL = {"vae_hidden_dim": 32}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output; the VAE's for the same code in each row, on both sides of its mean."""
    found: dict[str, Any] = {}
    for latent in (-0.5, 0.5):
        reconstruction, mean, std = twin.vae(batch.observations, batch.actions, latent)
        found |= {f"reconstruction {latent}": reconstruction, "code's mean": mean, "code's std": std}
    return found | {
        "actor": twin.actor(batch.observations),
        "critic_1": twin.critic_1(batch.observations, batch.actions),
        "critic_2": twin.critic_2(batch.observations, batch.actions),
    }


def pretrained(config: Any, start: int, num_updates: int) -> int:
    """The number of VAE updates in an interval."""
    return min(max(config.vae_iterations - start, 0), num_updates)


def update_statics(config: Any, step: int) -> dict[str, bool]:
    """Whether the update trains the VAE, and whether it trains the actor."""
    pretrains = step <= config.vae_iterations
    return {"pretrains": pretrains, "delayed": not pretrains and step % config.policy_freq == 0}


def interval_statics(config: Any, start: int, num_updates: int) -> dict[str, int]:
    """The rows stored so far, the number of VAE updates, and the phase of the first update after them."""
    vae_updates = pretrained(config, start, num_updates)
    return {"size": FILLED, "vae_updates": vae_updates, "phase": (start + vae_updates) % config.policy_freq}


class Adapter(Pair):
    """This pair's overrides."""

    outputs = staticmethod(outputs)

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {"discount": np.asarray(0.9), "lambd": np.asarray(0.4)}

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (FILLED, action_dim)

    def torch_phase(self, trainer: Any) -> tuple:
        return (trainer.pretrains, trainer.delayed)

    update_statics = staticmethod(update_statics)

    def number(self, step: int) -> tuple:
        return (np.asarray(step),)

    interval_statics = staticmethod(interval_statics)

    def call_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"phase": start % config.policy_freq}


PAIR = Adapter(
    name="finetune/spot",
    title="SPOT, offline to online",
    family=Family.FINETUNING,
    use="A density model of the data constrains the policy, less and less over time.",
    paper="Wu et al. 2022",
    url="https://arxiv.org/abs/2202.06239",
    benchmark_updates=50,
    variants={
        "default": SMALL | {"vae_iterations": 3},
        # The switch is within the ladder's trajectory; lambd reaches its lower bound in the updates after the warm
        # ones.
        "other": SMALL
        | {"vae_iterations": 0, "offline_iterations": 20, "online_iterations": 22, "lambd_cool": True}
        | {"lambd": 2.0, "lambd_end": 0.48, "num_samples": 2, "kl_weight": 2.0, "policy_freq": 3, "tau": 0.1}
        | {"discount": 0.9, "online_discount": 0.8, "policy_noise": 0.5, "noise_clip": 0.3, "expl_noise": 0.5}
        | {"actor_lr": 3e-4, "critic_lr": 1e-3, "actor_init_w": 1e-3, "critic_init_w": 3e-3},
        # The first update after the warm ones is the VAE's last one, in a run without an online phase. Two updates
        # later lambd has its final value. The actions' likelihood is estimated from three codes.
        "vae": SMALL
        | {"vae_iterations": 31, "vae_lr": 3e-4, "kl_weight": 0.1, "vae_latent_dim": 5, "iwae": True, "num_samples": 3}
        | {"offline_iterations": 1, "online_iterations": 0, "lambd_cool": True, "policy_freq": 1},
    },
    settings={
        "full size": {"vae_iterations": 3},
        "timed": {"vae_iterations": 0},
    },
)
