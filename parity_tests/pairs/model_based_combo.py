"""COMBO on the ladder: MOPO's roll-outs without a penalty, and CQL's conservative term on two kinds of rows."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pairs import cql
from parity_tests.pairs.imagined import LEARNT, ImaginedPair, replays, rolled_out

SMALL: dict[str, Any] = {"hidden_dims": (32, 24, 20), "cql_n_actions": 4, "rollout_batch_size": 30} | {
    "rollout_length": 3,
    "rollout_freq": 4,
    "model_retain_epochs": 2,
    "real_ratio": 0.3,
    **LEARNT,
}


def corner(trainer: Any) -> None:
    """Sets a temperature beyond 1, and the Lagrange multiplier beyond its bound or small enough to expose another."""
    trainer.log_temperature.constant.data.fill_(0.5)
    trainer.log_alpha_prime.constant.data.fill_(14.5 if trainer.hp.tune_temperature else -5.0)


class Adapter(ImaginedPair):
    """This pair's overrides."""

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "mean": twin.actor(batch.observations)[0],
            "std": twin.actor(batch.observations)[1],
            "critic_1": twin.critic_1(batch.observations, batch.actions),
            "critic_2": twin.critic_2(batch.observations, batch.actions),
        }

    predicted = staticmethod(rolled_out)

    corner = staticmethod(corner)

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {"log_prob": rng.normal(size=size), "gap_1": rng.normal(), "gap_2": rng.normal()}

    uses = cql.Adapter.uses

    def replays(self, patch: Any) -> None:
        return replays("model_based/combo", "COMBO")(patch)


PAIR = Adapter(
    name="model_based/combo",
    title="COMBO",
    family=Family.MODEL,
    use="Like MOPO, but it pushes values down as CQL does, and needs no measure of the model's uncertainty.",
    paper="Yu et al. 2021",
    url="https://arxiv.org/abs/2102.08363",
    benchmark_updates=10,
    variants={
        "default": SMALL,
        "model states": SMALL
        | {"rho_s": "model", "real_ratio": 0.6, "discount": 0.9, "tau": 0.1, "cql_alpha": 0.5, "rollout_length": 4}
        | {"actor_lr": 1e-2, "critic_lr": 3e-3, "temperature_lr": 1e-1, "target_entropy": -20.0}
        | {"backup_entropy": True, "cql_temp": 2.0}
        | {"max_timesteps": 40, "num_updates_on_epoch": 8},
        "best of several": SMALL
        | {"cql_max_target_backup": True, "backup_entropy": True, "tune_temperature": False, "fixed_temperature": 0.7}
        | {"cql_lagrange": True, "cql_target_action_gap": 1.5, "real_ratio": 0.5}
        | {"rollout_length": 1},
        "three at a time": SMALL
        | {"cql_joint_logsumexp": False, "cql_temp": 0.5, "uniform_rollout": True}
        | {"cql_lagrange": True, "alpha_prime_lr": 1e-2},
    },
    settings={"full size": LEARNT},
    tolerances={
        # As for MOPO: near an action's bound, 1 - tanh(u)^2 loses most of its digits, differently in each framework.
        "float64": {"loss": 1e-10, "gradient": 5e-9, "update": 2e-9, "log": 2e-9, "shipped path": 1e-8},
        "float32": {"update": 1e-3, "shipped path": 1e-3},
    },
)
