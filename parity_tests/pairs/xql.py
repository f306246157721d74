"""XQL on the ladder."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from parity_tests.families import Family
from parity_tests.pair import Pair


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and cases that few batches reach: losses far beyond their clip, deviations too."""
    mean, std = twin.actor(batch.observations)
    q1, q2 = twin.critic(batch.observations, batch.actions)
    return {
        "mean": mean,
        "std": std,
        "q1": q1,
        "q2": q2,
        "v": twin.value(batch.observations),
        "loss of large errors": twin.gumbel_loss(40.0 * batch.observations[:, 0] + 30.0),
        "loss of negative errors": twin.gumbel_loss(-3.0 - abs(batch.observations[:, 0])),
        "bounded std": bounded_std(twin.actor, batch.observations, mean.shape[-1]),
    }


def bounded_std(actor: Any, observations: Any, action_dim: int) -> Any:
    """The policy's standard deviations if its parameters are below, between and above their bounds."""
    log_std = np.linspace(-8.0, 5.0, action_dim)
    if isinstance(actor, nn.Module):
        log_std = torch.as_tensor(log_std, dtype=torch.get_default_dtype())
        return torch.func.functional_call(actor, {"log_std": log_std}, (observations,))[1]
    return actor.replace(params={**actor.params, "log_std": jnp.asarray(log_std, dtype=float)})(observations)[1]


def corner(trainer: Any) -> None:
    """Makes target critics bring errors beyond the loss's clip and weights to their cap."""
    for critic in (trainer.critic_target.q1, trainer.critic_target.q2):
        critic.net[-1].weight.data.mul_(8.0)


class Adapter(Pair):
    """This pair's overrides."""

    corners = ("loss of large errors", "loss of negative errors", "bounded std")

    outputs = staticmethod(outputs)

    corner = staticmethod(corner)

    def drawn_inside(self, twin: Any, noise: Any, hp: Any) -> Any:
        return noise._replace(dropout=twin.dropout_masks(noise, hp))


PAIR = Adapter(
    name="xql",
    title="XQL",
    family=Family.WEIGHTED,
    use="Like IQL, but a temperature moves V between the mean and the largest value of the data's actions.",
    paper="Garg et al. 2023",
    url="https://arxiv.org/abs/2301.02328",
    benchmark_updates=100,
    variants={
        "default": {},
        # The other form of the loss, and several steps of V on rows, some of which are drawn
        "other": {"discount": 0.9, "tau": 0.1, "loss_temp": 0.5, "max_clip": 2.0, "gumbel_form": "log"}
        | {"value_updates": 3, "random_actions": 2, "noise": True, "noise_std": 0.3, "inverse_temperature": 20.0}
        | {"value_lr": 1e-3, "critic_lr": 1e-4, "actor_lr": 1e-3, "opt_decay_schedule": "none"},
        # The cosine ends within the ladder's trajectory; no clip.
        "dropout": {
            "actor_dropout": 0.1,
            "random_actions": 1,
            "max_clip": None,
            "loss_temp": 4.0,
            "inverse_temperature": 0.5,
        }
        | {"max_timesteps": 40},
    },
    settings={
        # The schedule gives a Python number, which a recording would fix.
        "on device": {"opt_decay_schedule": "none"},
    },
    tolerances={
        # Exponentials of errors up to 7 magnify rounding: measured 2e-5 in a loss, 5e-5 in Adam's moments.
        "float32": {"update": 1e-4},
    },
)
