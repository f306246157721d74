"""QRL on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import GoalPair

SMALL = {"actor_hidden_dims": (32, 24), "value_hidden_dims": (24, 32), "latent_dim": 24}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output."""
    mean, std = twin.actor(batch.observations, batch.actor_goals)
    latents = twin.quasimetric(batch.observations)
    return {"mean": mean, "std": std, "latents": latents, "next latents": twin.dynamics(latents, batch.actions)}


class Adapter(GoalPair):
    """This pair's overrides."""

    compiled_in = "float32"

    outputs = staticmethod(outputs)

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {"violation": rng.random()}

    def uses(self, loss: str, config: Any) -> bool:
        return loss != "dynamics_loss" or config.actor_loss == "ddpgbc"


PAIR = Adapter(
    name="goal_conditioned/qrl",
    title="QRL",
    family=Family.GOALS,
    use="Distances obey the triangle inequality, so it joins ways that no trajectory in the data joins.",
    paper="Wang et al. 2023",
    url="https://arxiv.org/abs/2304.01203",
    benchmark_updates=10,
    variants={
        "default": SMALL,
        # The other metric and goals, actions drawn with a learnt deviation, no LayerNorm
        "mrn": {"actor_hidden_dims": (16, 24, 16), "value_hidden_dims": (24, 16, 24), "latent_dim": 16}
        | {"quasimetric_type": "mrn", "value_ln": False, "const_std": False, "alpha": 1.0, "eps": 0.2}
        | {"value_p_curgoal": 0.4, "value_p_trajgoal": 0.3, "value_p_randomgoal": 0.3, "value_geom_sample": False}
        | {"actor_p_trajgoal": 0.5, "actor_p_randomgoal": 0.5, "actor_geom_sample": True}
        | {"discount": 0.9, "learning_rate": 1e-3},
        # Weights that reach their cap
        "awr": SMALL | {"actor_loss": "awr", "alpha": 200.0},
    },
    tolerances={
        # Where ends of intervals almost meet, rounding decides whose gradient it is. At full size this happens in a few
        # of half a million pairs, and moves a moment by 1.7e-3 of its size (float64: 4e-15).
        "float32": {"update": 5e-3},
    },
)
