"""CQL on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair

SMALL = {"cql_n_actions": 4, "hidden_dim": 32}


def corner(trainer: Any) -> None:
    """Sets the Lagrange multiplier beyond its bound, or so small that any lower bound except 0 would show."""
    trainer.log_alpha_prime.constant.data.fill_(14.5 if trainer.hp.tune_temperature else -5.0)


class Adapter(Pair):
    """This pair's overrides."""

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "mean": twin.actor(batch.observations)[0],
            "std": twin.actor(batch.observations)[1],
            "critic_1": twin.critic_1(batch.observations, batch.actions),
            "critic_2": twin.critic_2(batch.observations, batch.actions),
        }

    corner = staticmethod(corner)

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {"log_prob": rng.normal(size=size), "gap_1": rng.normal(), "gap_2": rng.normal()}

    def uses(self, loss: str, config: Any) -> bool:
        return {"alpha_loss": config.tune_temperature, "alpha_prime_loss": config.cql_lagrange}.get(loss, True)

    def draw_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"in_bc_steps": step <= config.bc_steps}

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"move_targets": step % config.target_update_period == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {
            "phase": start % config.target_update_period,
            "bc_updates": min(max(config.bc_steps - start, 0), num_updates),
        }


PAIR = Adapter(
    name="cql",
    title="CQL",
    family=Family.REGULARISATION,
    use="You worry about overestimated values: it is cautious, but an update is expensive.",
    paper="Kumar et al. 2020",
    url="https://arxiv.org/abs/2006.04779",
    benchmark_updates=16,
    variants={
        "default": SMALL,
        "antmaze": SMALL
        | {"cql_lagrange": True, "cql_max_target_backup": True, "cql_target_action_gap": 0.8, "cql_alpha": 5.0}
        | {"cql_clip_diff_min": -200.0, "critic_n_hiddens": 5, "actor_lr": 1e-4},
        "unweighted": SMALL
        | {"cql_importance_sample": False, "cql_temp": 2.0, "backup_entropy": True, "bc_steps": 5}
        | {"orthogonal_init": False, "policy_log_std_multiplier": 0.5, "target_update_period": 3}
        | {"alpha_multiplier": 0.7},
        "fixed temperature": SMALL
        | {"tune_temperature": False, "alpha_multiplier": 0.3}
        | {"backup_entropy": True, "cql_max_target_backup": True}
        | {"cql_clip_diff_min": 3.9, "cql_clip_diff_max": 4.3, "cql_lagrange": True},
    },
)
