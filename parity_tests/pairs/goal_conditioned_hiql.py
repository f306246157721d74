"""HIQL on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import GoalPair

SMALL = {"actor_hidden_dims": (32, 24), "value_hidden_dims": (24, 32), "rep_dim": 5}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and the weight of an advantage of 0."""
    codes = twin.representation(batch.observations, batch.low_goals)
    v = twin.value(batch.observations, codes)
    low, high = twin.low_actor(batch.observations, codes), twin.high_actor(batch.observations, batch.high_goals)
    of_actors = {"low mean": low[0], "low std": low[1], "high mean": high[0], "high std": high[1]}
    return {"codes": codes, "v": v, **of_actors, "weight at a tie": twin.expectile_weight(v - v)}


class Adapter(GoalPair):
    """This pair's overrides."""

    corners = ("weight at a tie",)

    outputs = staticmethod(outputs)


PAIR = Adapter(
    name="goal_conditioned/hiql",
    title="HIQL",
    family=Family.GOALS,
    use="Goals are far away: it imitates the way to a near subgoal, whose choice needs only coarse values.",
    paper="Park et al. 2023",
    url="https://arxiv.org/abs/2307.11949",
    benchmark_updates=10,
    variants={
        "default": SMALL,
        # Other goals, positive rewards, learnt deviations, weights that reach their caps, codes learnt from both losses
        "other": {"actor_hidden_dims": (16, 24, 16), "value_hidden_dims": (24, 16, 24), "rep_dim": 3}
        | {"value_ln": False, "const_std": False, "gc_negative": False, "low_actor_rep_grad": True}
        | {"low_inverse_temperature": 60.0, "high_inverse_temperature": 20.0, "subgoal_steps": 3}
        | {"value_p_curgoal": 0.4, "value_p_trajgoal": 0.6, "value_p_randomgoal": 0.0, "value_geom_sample": False}
        | {"actor_p_trajgoal": 0.5, "actor_p_randomgoal": 0.5, "actor_geom_sample": True}
        | {"discount": 0.9, "tau": 0.1, "iql_tau": 0.8, "learning_rate": 1e-3},
    },
    tolerances={
        # At full size, the rows' errors partly cancel in the gradient of a value's last bias, a single number: 1.2e-5.
        "float32": {"update": 5e-5},
    },
)
