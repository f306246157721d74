"""GCBC on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import GoalPair


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """The policy's mean and standard deviation."""
    mean, std = twin.actor(batch.observations, batch.actor_goals)
    return {"mean": mean, "std": std}


class Adapter(GoalPair):
    """This pair's overrides."""

    outputs = staticmethod(outputs)


PAIR = Adapter(
    name="goal_conditioned/gcbc",
    title="GCBC",
    family=Family.GOALS,
    use="A baseline for the others: it imitates every way to a state that the data reach, however long.",
    paper="Park et al. 2024",
    url="https://arxiv.org/abs/2410.20092",
    benchmark_updates=30,
    variants={
        "default": {"actor_hidden_dims": (32, 24)},
        # Other goals, a learnt deviation
        "other": {"actor_hidden_dims": (16, 24, 16), "const_std": False, "learning_rate": 1e-3, "discount": 0.9}
        | {"actor_p_curgoal": 0.2, "actor_p_trajgoal": 0.5, "actor_p_randomgoal": 0.3, "actor_geom_sample": True},
    },
)
