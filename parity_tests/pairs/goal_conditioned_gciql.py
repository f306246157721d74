"""GCIQL on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import GoalPair

SMALL = {"actor_hidden_dims": (32, 24), "value_hidden_dims": (24, 32)}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and the weight of an advantage of 0."""
    mean, std = twin.actor(batch.observations, batch.actor_goals)
    q = twin.critic(batch.observations, batch.value_goals, batch.actions)
    v = twin.value(batch.observations, batch.value_goals)
    return {"mean": mean, "std": std, "q": q, "v": v, "weight at a tie": twin.expectile_weight(v - v)}


class Adapter(GoalPair):
    """This pair's overrides."""

    corners = ("weight at a tie",)

    outputs = staticmethod(outputs)


PAIR = Adapter(
    name="goal_conditioned/gciql",
    title="GCIQL",
    family=Family.GOALS,
    use="Its policy may leave the data's actions to follow Q, which helps where goals are near and actions precise.",
    paper="Park et al. 2024",
    url="https://arxiv.org/abs/2410.20092",
    benchmark_updates=10,
    variants={
        "default": SMALL,
        # Other goals, positive rewards, actions drawn with a learnt deviation, no LayerNorm
        "other": {"actor_hidden_dims": (16, 24, 16), "value_hidden_dims": (24, 16, 24)}
        | {"value_ln": False, "const_std": False, "gc_negative": False, "alpha": 1.0}
        | {"value_p_curgoal": 0.4, "value_p_trajgoal": 0.6, "value_p_randomgoal": 0.0, "value_geom_sample": False}
        | {"actor_p_trajgoal": 0.5, "actor_p_randomgoal": 0.5, "actor_geom_sample": True}
        | {"discount": 0.9, "tau": 0.1, "iql_tau": 0.7, "learning_rate": 1e-3},
        # Weights that reach their cap
        "awr": SMALL | {"actor_loss": "awr", "alpha": 40.0},
    },
)
