"""CQL, offline to online, on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import cql
from parity_tests.pairs.finetune_iql import FILLED

# The numbers of sampled actions and action components differ, so that neither axis can be mistaken for the other.
SMALL = {"cql_n_actions": 5, "hidden_dim": 16}


def update_statics(config: Any, step: int) -> dict[str, bool]:
    """Whether the update is online, and whether targets move."""
    return {"online": step > config.offline_iterations, "move_targets": step % config.target_update_period == 0}


def of_a_call(config: Any, start: int, num_updates: int) -> dict[str, int]:
    """The phase in which the call begins, and its updates within `bc_steps`."""
    bc_updates = min(max(config.bc_steps - start, 0), num_updates)
    return {"phase": start % config.target_update_period, "bc_updates": bc_updates}


def corner(trainer: Any) -> None:
    """Sets the Lagrange multiplier beyond its bound; in "Lagrange" so small that any lower bound above 0 would show."""
    hp = trainer.hp
    trainer.log_alpha_prime.constant.data.fill_(-5.0 if hp.cql_lagrange and hp.cql_importance_sample else 14.5)


class Adapter(Pair):
    """This pair's overrides."""

    outputs = staticmethod(cql.PAIR.outputs)

    corner = staticmethod(corner)

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return cql.PAIR.extra_inputs(rng, size) | {"cql_alpha": np.asarray(3.0)}

    uses = cql.Adapter.uses

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (FILLED, action_dim)

    draw_statics = staticmethod(cql.PAIR.draw_statics)

    update_statics = staticmethod(update_statics)

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {
            "size": FILLED,
            **of_a_call(config, start, num_updates),
            "online": start >= config.offline_iterations,
        }

    call_statics = staticmethod(of_a_call)


PAIR = Adapter(
    name="finetune/cql",
    title="CQL, offline to online",
    family=Family.FINETUNING,
    use="A baseline for Cal-QL.",
    paper="Kumar et al. 2020",
    url="https://arxiv.org/abs/2006.04779",
    benchmark_updates=16,
    variants={
        # If the temperature is learned, its factor matters too; "other" learns none.
        "default": SMALL | {"alpha_multiplier": 0.7},
        "Lagrange": SMALL | {"cql_lagrange": True},
        # Everything that can differ. The switch is within the ladder's trajectory, so that updates after the warm ones
        # are online. By then the critics have learned so fast that their gap is clipped on both sides.
        "other": SMALL
        | {"cql_lagrange": True, "cql_max_target_backup": True, "cql_target_action_gap": 0.8, "cql_temp": 2.0}
        | {"cql_importance_sample": False, "backup_entropy": True, "bc_steps": 5, "target_update_period": 3}
        | {"tune_temperature": False, "alpha_multiplier": 0.3, "orthogonal_init": False, "critic_lr": 0.01}
        | {"cql_alpha": 1.5, "cql_alpha_online": 0.5, "critic_n_hiddens": 1, "offline_iterations": 20}
        | {"cql_clip_diff_min": 4.4, "cql_clip_diff_max": 4.7},
    },
    tolerances={
        # In "other" the conservative terms almost cancel in the gradient of a critic's last bias, a single number. It
        # steps by a hundredth: 1.9e-5 measured after an update.
        "float32": {"update": 5e-5},
    },
)
