"""IFQL on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair

SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "n_action_samples": 5}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and a tie in V's loss, which few batches reach; a column of the batch serves as times."""
    v = twin.value(batch.observations)
    return {
        "value": v,
        "critic": twin.critic(batch.observations, batch.actions),
        "flow": twin.flow(batch.observations, batch.actions, batch.observations[:, 0]),
        "weight at a tie": twin.expectile_weight(v - v),
    }


class Adapter(Pair):
    """This pair's overrides."""

    corners = ("weight at a tie",)

    outputs = staticmethod(outputs)


PAIR = Adapter(
    name="ifql",
    title="IFQL",
    family=Family.CONSTRAINT,
    use="The data's actions have several modes, and values and actions should be learnt apart.",
    paper="Park et al. 2025",
    url="https://arxiv.org/abs/2502.02538",
    benchmark_updates=10,
    variants={
        "default": SMALL,
        # The norms exchanged, deeper networks, and an expectile below the mean
        "other": {"actor_hidden_dims": (16, 24, 16), "critic_hidden_dims": (24, 16, 24), "n_action_samples": 3}
        | {"actor_ln": True, "critic_ln": False, "iql_tau": 0.3, "flow_steps": 3}
        | {"discount": 0.9, "tau": 0.1, "learning_rate": 1e-3},
    },
)
