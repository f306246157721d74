"""PLAS on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs.finetune_spot import pretrained

# One more than the ladder's warm updates, so that the first update after those is the VAE's last one.
AS_WARM = 31
SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "vae_hidden_dims": (32, 32)}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output; the decoder's for codes on both sides of the encoder's mean."""
    mean, std = twin.encoder(batch.observations, batch.actions)
    return {
        "code's mean": mean,
        "code's std": std,
        "below": twin.decoder(batch.observations, mean - std),
        "above": twin.decoder(batch.observations, mean + std),
        "actor": twin.actor(batch.observations, twin.decoder),
        "critic": twin.critic(batch.observations, batch.actions),
    }


class Adapter(Pair):
    """This pair's overrides."""

    outputs = staticmethod(outputs)

    def uses(self, loss: str, config: Any) -> bool:
        # The codes of the VAE are drawn for its own updates only.
        return loss != "vae_loss" or config.vae_iterations >= AS_WARM

    def draw_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"pretrains": step <= config.vae_iterations}

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"pretrains": step <= config.vae_iterations}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"vae_updates": pretrained(config, start, num_updates)}


PAIR = Adapter(
    name="plas",
    title="PLAS",
    family=Family.CONSTRAINT,
    use="The policy acts in the latent space of a generative model of the data.",
    paper="Zhou et al. 2020",
    url="https://arxiv.org/abs/2011.07213",
    benchmark_updates=100,
    variants={
        "default": SMALL | {"vae_iterations": 3},
        # PLAS+P in the form of d3rlpy 2.8.1: decoded actions without a bound, a target policy of its own
        "other": SMALL
        | {"vae_iterations": 0, "vae_tanh": False, "copy_target_policy": False, "lam": 0.3, "n_critics": 3}
        | {"perturbation": True, "action_flexibility": 0.3, "discount": 0.9, "tau": 0.1}
        | {"actor_lr": 1e-3, "critic_lr": 3e-4},
        # PLAS+P in the form of the paper, at the end of the VAE's updates
        "vae": SMALL
        | {"vae_iterations": AS_WARM, "vae_lr": 3e-4, "kl_weight": 2.0, "lam": 0.75}
        | {"perturbation": True, "action_flexibility": 0.2},
    },
    settings={
        "full size": {"vae_iterations": 3},
        "timed": {"vae_iterations": 0},
    },
)
