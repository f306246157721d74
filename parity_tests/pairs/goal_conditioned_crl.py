"""CRL on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import GoalPair

SMALL = {"actor_hidden_dims": (32, 24), "value_hidden_dims": (24, 32), "latent_dim": 20}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output."""
    mean, std = twin.actor(batch.observations, batch.actor_goals)
    phi, psi = twin.critic(batch.value_goals, batch.observations, batch.actions)
    of_state, of_goal = twin.value(batch.value_goals, batch.observations)
    return {"mean": mean, "std": std, "phi": phi, "psi": psi, "value phi": of_state, "value psi": of_goal}


class Adapter(GoalPair):
    """This pair's overrides."""

    outputs = staticmethod(outputs)

    def uses(self, loss: str, config: Any) -> bool:
        return loss != "value_loss" or config.actor_loss == "awr"


PAIR = Adapter(
    name="goal_conditioned/crl",
    title="CRL",
    family=Family.GOALS,
    use="It classifies instead of bootstrapping, which suits long trajectories that pass through the goals.",
    paper="Eysenbach et al. 2022",
    url="https://arxiv.org/abs/2206.07568",
    benchmark_updates=10,
    variants={
        "default": SMALL,
        # Other goals, actions drawn with a learnt deviation, no LayerNorm
        "other": {"actor_hidden_dims": (16, 24, 16), "value_hidden_dims": (24, 16, 24), "latent_dim": 9}
        | {"value_ln": False, "const_std": False, "alpha": 1.0, "discount": 0.9, "learning_rate": 1e-3}
        | {"value_p_curgoal": 0.2, "value_p_trajgoal": 0.5, "value_p_randomgoal": 0.3, "value_geom_sample": False}
        | {"actor_p_trajgoal": 0.5, "actor_p_randomgoal": 0.5, "actor_geom_sample": True},
        # Weights that reach their cap
        "awr": SMALL | {"actor_loss": "awr", "alpha": 40.0},
    },
)
