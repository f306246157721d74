"""CQL, offline to online, on the ladder."""

from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.pair import Facts, Loss, Mistake, Pair
from parity_tests.pairs import cql
from parity_tests.pairs.finetune_iql import FILLED, OF_A_CALL

SMALL = {"cql_n_actions": 4, "hidden_dim": 32}


def update_statics(config: Any, step: int) -> dict[str, bool]:
    """Of which phase it is, and whether targets move."""
    return {"online": step > config.offline_iterations, "move_targets": step % config.target_update_period == 0}


def of_a_call(config: Any, start: int, num_updates: int) -> dict[str, int]:
    """Where it begins in the period, and its updates within `bc_steps`."""
    bc_updates = min(max(config.bc_steps - start, 0), num_updates)
    return {"phase": start % config.target_update_period, "bc_updates": bc_updates}


PAIR = Pair(
    name="finetune/cql",
    title="CQL, offline to online",
    paper="Kumar et al. 2020",
    url="https://arxiv.org/abs/2006.04779",
    benchmark_updates=16,
    outputs=cql.PAIR.outputs,
    losses=dict(cql.PAIR.losses)
    | {
        "critic_loss": Loss(of=("critic_1", "critic_2"), inputs=("batch", "noise", "cql_alpha")),
        "alpha_prime_loss": replace(cql.PAIR.losses["alpha_prime_loss"], inputs=("gap_1", "gap_2", "cql_alpha")),
    },
    variants={
        "default": SMALL,
        # The switch lies within the ladder's trajectory, the warm updates are online ones.
        "antmaze": SMALL
        | {"cql_lagrange": True, "cql_max_target_backup": True, "cql_target_action_gap": 0.8, "policy_lr": 1e-4}
        | {"cql_alpha": 5.0, "cql_alpha_online": 2.0, "cql_clip_diff_min": -200.0, "q_n_hidden_layers": 3}
        | {"offline_iterations": 20},
        # All that is left, with the gap cut from both sides.
        "other": SMALL
        | {"cql_importance_sample": False, "cql_temp": 2.0, "backup_entropy": True, "bc_steps": 3}
        | {"orthogonal_init": False, "target_update_period": 2, "use_automatic_entropy_tuning": False}
        | {"alpha_multiplier": 0.3, "cql_clip_diff_min": 3.9, "cql_clip_diff_max": 4.3, "offline_iterations": 40}
        | {"cql_alpha_online": 1.0},
    },
    corner=cql.corner,
    extra_inputs=lambda rng, size: cql.PAIR.extra_inputs(rng, size) | {"cql_alpha": np.asarray(3.0)},
    draw_inputs=lambda dataset, action_dim: (FILLED, action_dim),
    draw_statics=cql.PAIR.draw_statics,
    update_statics=update_statics,
    interval_statics=lambda config, start, num_updates: {
        "size": FILLED,
        **of_a_call(config, start, num_updates),
        "online": start >= config.offline_iterations,
    },
    call_statics=of_a_call,
    explores=True,
    facts=Facts(rewarded="critic_loss", rate="soft_target_update_rate"),
)

# Of the offline twin, as far as their texts stand here too; some that say something of what is new
SHARED = {
    "log-std not clamped",
    "no tanh correction",
    "temperature loss without a sign",
    "next samples judged in next states",
    "densities swapped",
    "count subtracted from the soft maximum",
    "policy samples not detached",
    "biased standard deviation",
    "target period ignored",
    "same noise at every update",
}

MISTAKES: list[Mistake] = []
