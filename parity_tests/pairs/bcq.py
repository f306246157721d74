"""BCQ on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs.finetune_spot import pretrained
from parity_tests.pairs.plas import AS_WARM

SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "vae_hidden_dims": (32, 32)}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output; the decoder's for codes on both sides of the encoder's mean."""
    mean, std = twin.encoder(batch.observations, batch.actions)
    return {
        "code's mean": mean,
        "code's std": std,
        "below": twin.decoder(batch.observations, mean - std),
        "above": twin.decoder(batch.observations, mean + std),
        "actor": twin.actor(batch.observations, batch.actions),
        "critic": twin.critic(batch.observations, batch.actions),
    }


class Adapter(Pair):
    """This pair's overrides."""

    outputs = staticmethod(outputs)

    def uses(self, loss: str, config: Any) -> bool:
        # The VAE's own updates draw no noise for the others.
        return loss == "vae_loss" or config.vae_iterations < AS_WARM

    def draw_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"pretrains": step <= config.vae_iterations}

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"pretrains": step <= config.vae_iterations}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"vae_updates": pretrained(config, start, num_updates)}


PAIR = Adapter(
    name="bcq",
    title="BCQ",
    family=Family.CONSTRAINT,
    use="The data comes from a narrow policy: a generative model proposes the actions.",
    paper="Fujimoto et al. 2018",
    url="https://arxiv.org/abs/1812.02900",
    benchmark_updates=60,
    variants={
        "default": SMALL | {"n_action_samples": 5},
        # In the form of d3rlpy 2.8.1: decoded actions without a bound, a target perturbation of its own
        "other": SMALL
        | {"vae_iterations": 2, "vae_tanh": False, "copy_target_policy": False, "lam": 0.3, "n_critics": 3}
        | {"n_action_samples": 4, "n_target_samples": 3, "action_flexibility": 0.3, "discount": 0.9, "tau": 0.1}
        | {"actor_lr": 3e-4, "critic_lr": 2e-4, "vae_lr": 5e-4, "kl_weight": 2.0},
        # At the end of the updates of the VAE alone
        "vae": SMALL | {"vae_iterations": AS_WARM, "n_action_samples": 3},
    },
    settings={
        "full size": {"n_action_samples": 10},
    },
)
