"""FQL on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair

SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32)}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and the flow's end points; arbitrary columns of the batch serve as noise and times."""
    return {
        "actor": twin.actor(batch.observations, batch.actions),
        "flow": twin.flow(batch.observations, batch.actions, batch.observations[:, 0]),
        "critic": twin.critic(batch.observations, batch.actions),
        "flow's actions": twin.flow_actions(batch.observations, batch.actions),
    }


class Adapter(Pair):
    """This pair's overrides."""

    outputs = staticmethod(outputs)


# Far beyond its bounds, the flow is fed with its own outputs. Its points grow to 2.3e4 before they are cut to 1, and
# their rounding grows with them. If times are a step late in both files, the actions differ by 6e-13 to 1.2e-12.
FLOAT64 = {"forward": 1e-11}

PAIR = Adapter(
    name="fql",
    title="FQL",
    family=Family.CONSTRAINT,
    use="The data's actions have several modes, and a normal policy would take the middle.",
    paper="Park et al. 2025",
    url="https://arxiv.org/abs/2502.02538",
    benchmark_updates=10,
    variants={
        "default": SMALL,
        # The other aggregation in the target, a normalised Q term, the norms exchanged, deeper networks
        "other": {"actor_hidden_dims": (16, 24, 16), "critic_hidden_dims": (24, 16, 24)}
        | {"q_agg": "min", "normalize_q": True, "actor_ln": True, "critic_ln": False}
        | {"flow_steps": 3, "distill_coef": 0.3, "discount": 0.9, "tau": 0.1, "learning_rate": 1e-3},
    },
    tolerances={"float64": FLOAT64},
)
