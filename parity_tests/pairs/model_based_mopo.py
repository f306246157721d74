"""MOPO on the ladder: updates on two buffers, and roll-outs of a small made-up model."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pairs.imagined import LEARNT, ImaginedPair, replays, rolled_out

SMALL: dict[str, Any] = {"hidden_dims": (48, 40), "rollout_batch_size": 30, "rollout_length": 3, "rollout_freq": 4} | {
    "model_retain_epochs": 2,
    "real_ratio": 0.3,
    **LEARNT,
}


def corner(trainer: Any) -> None:
    """Sets the temperature beyond its bound, unless its own target brings it below."""
    if trainer.hp.target_entropy is None:
        trainer.log_temperature.constant.data.fill_(0.5)


class Adapter(ImaginedPair):
    """This pair's overrides."""

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "mean": twin.actor(batch.observations)[0],
            "std": twin.actor(batch.observations)[1],
            "critic_1": twin.critic_1(batch.observations, batch.actions),
            "critic_2": twin.critic_2(batch.observations, batch.actions),
        }

    predicted = staticmethod(rolled_out)

    corner = staticmethod(corner)

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {"log_prob": rng.normal(size=size)}

    def uses(self, loss: str, config: Any) -> bool:
        return loss != "alpha_loss" or config.tune_temperature

    def replays(self, patch: Any) -> None:
        return replays("model_based/mopo", "MOPO")(patch)


PAIR = Adapter(
    name="model_based/mopo",
    title="MOPO",
    family=Family.MODEL,
    use="Soft actor-critic on a model's rollouts: it can leave the data if the model is certain.",
    paper="Yu et al. 2020",
    url="https://arxiv.org/abs/2005.13239",
    benchmark_updates=40,
    variants={
        "default": SMALL,
        "other": SMALL
        | {
            "discount": 0.9,
            "tau": 0.1,
            "actor_lr": 1e-2,
            "critic_lr": 3e-3,
            "temperature_lr": 1e-1,
            "target_entropy": -20.0,
        }
        | {"real_ratio": 0.8, "rollout_length": 4, "penalty_coef": 0.0, "max_timesteps": 40, "num_updates_on_epoch": 8},
        "fixed temperature": SMALL
        | {
            "tune_temperature": False,
            "fixed_temperature": 0.7,
            "uncertainty_mode": "ensemble_std",
            "real_ratio": 0.5,
            "rollout_length": 1,
        },
    },
    settings={"full size": LEARNT},
    tolerances={
        # As for SAC-N: near an action's bound, 1 - tanh(u)^2 loses most of its digits, differently in each framework. A
        # loss differs by up to 3e-11, after a step by 7e-10, a moment by 4e-10, a gradient by 1.2e-9. In single
        # precision a last bias, which is close to 0, differs by 3e-4.
        "float64": {"loss": 1e-10, "gradient": 5e-9, "update": 2e-9, "log": 2e-9, "shipped path": 1e-8},
        "float32": {"update": 1e-3, "shipped path": 1e-3},
    },
)
