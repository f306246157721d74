"""CRR on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair

SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32)}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and the weight for an advantage of 0, which batches do not reach."""
    mean, std = twin.actor(batch.observations)
    q = twin.critic(batch.observations, batch.actions)
    return {"mean": mean, "std": std, "critic": q, "weight at a tie": twin.weights(q[0] - q[0])}


def corner(trainer: Any) -> None:
    """Makes the values of samples differ as much as Gumbel numbers do, since otherwise no draw would depend on them."""
    for critics in (trainer.critic, trainer.critic_target):
        for member in critics.members:
            member[-1].weight.data.mul_(30.0)


class Adapter(Pair):
    """This pair's overrides."""

    corners = ("weight at a tie",)

    outputs = staticmethod(outputs)

    corner = staticmethod(corner)

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"copies": (step - 1) % config.target_update_period == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"phase": start % config.target_update_period}


PAIR = Adapter(
    name="crr",
    title="CRR",
    family=Family.WEIGHTED,
    use="Like AWAC, but it can ignore actions that are worse than the policy's own.",
    paper="Wang et al. 2020",
    url="https://arxiv.org/abs/2006.15134",
    benchmark_updates=100,
    variants={
        "default": SMALL,
        # In the form of d3rlpy 2.8.1, whose defaults these are: hard targets, which start with weights of their own
        "other": SMALL
        | {"copy_target_policy": False, "target_update_type": "hard", "target_update_period": 7}
        | {"weight_type": "exp", "advantage_temperature": 0.1, "max_weight": 3.0, "n_critics": 3, "n_action_samples": 3}
        | {"discount": 0.9, "actor_lr": 1e-3, "critic_lr": 1e-4},
        # Copies at other updates, against the best of the samples
        "max": SMALL
        | {"advantage_type": "max", "target_update_type": "hard", "target_update_period": 3, "tau": 0.1}
        | {"n_critics": 2, "n_action_samples": 2},
    },
)
