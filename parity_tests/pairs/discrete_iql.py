"""IQL of finite actions on the ladder."""

from typing import Any

import jax.numpy as jnp
from jax.nn import log_softmax

from parity_tests.families import Family
from parity_tests.pair import FinitePair

SMALL = {"hidden_dims": (64, 48)}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and a case that few batches reach: a tie in V's loss."""
    v = twin.value(batch.observations)
    return {
        "actor": twin.actor(batch.observations),
        "critic": twin.critic(batch.observations),
        "v": v,
        "weight at a tie": twin.expectile_weight(v - v),
    }


def corner(trainer: Any) -> None:
    """Makes critics bring the policy's weights to their cap, and targets disagree with them."""
    for critic in (trainer.critic.q1, trainer.critic.q2):
        critic[-1].weight.data.mul_(3.0)
    for critic in (trainer.critic_target.q1, trainer.critic_target.q2):
        critic[-1].weight.data.mul_(-2.0)


def unlikelihood(actor: Any, batch: Any) -> Any:
    """Behaviour cloning: the data's negative log-likelihood."""
    return -jnp.take_along_axis(log_softmax(actor(batch.observations)), batch.actions[:, None], axis=-1).mean()


class Adapter(FinitePair):
    """This pair's overrides."""

    corners = ("weight at a tie",)
    records_on_cpu = False

    outputs = staticmethod(outputs)

    corner = staticmethod(corner)


PAIR = Adapter(
    name="discrete/iql",
    title="IQL, finite actions",
    family=Family.FINITE,
    use="It is stable, and never evaluates an action outside the data.",
    paper="Kostrikov et al. 2021",
    url="https://arxiv.org/abs/2110.06169",
    benchmark_updates=300,
    variants={
        "default": SMALL,
        # The cosine ends within the ladder's trajectory.
        "other": SMALL
        | {"discount": 0.9, "tau": 0.1, "inverse_temperature": 10.0, "iql_tau": 0.9, "max_timesteps": 40}
        | {"value_lr": 1e-3, "critic_lr": 2e-3, "actor_lr": 3e-3},
        "constant rate": SMALL
        | {
            "opt_decay_schedule": "none",
            "max_timesteps": 40,
            "inverse_temperature": 0.5,
            "iql_tau": 0.5,
            "actor_lr": 1e-3,
        },
        "images": SMALL | {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (24,)},
    },
    settings={
        # The schedule gives a Python number, which a recording would fix.
        "on device": {"opt_decay_schedule": "none"},
    },
)
