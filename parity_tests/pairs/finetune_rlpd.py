"""RLPD on the ladder. An update is many gradient steps of the critics, made few here."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Loss, Pair
from shared.data.transitions import extract_transitions

# Learning starts within a call of the online phase, and before the warm updates are over.
SMALL = {"hidden_dims": (24, 32), "n_critics": 4, "critic_updates": 3, "learning_starts": 3}


class Adapter(Pair):
    """This pair's overrides."""

    # The count is for the loop inside an update, one step of the critics: the target looks up ten arrays of weights.
    gathers = 10
    counted_updates = 2
    compiled_in = "float32"
    # Each loss is of one minibatch, and is given that minibatch's noise alone.
    losses = {
        "critic_loss": Loss(of=("critic",), inputs=("batch", "target", "subset")),
        "actor_loss": Loss(of=("actor",), inputs=("batch", "actor")),
        "alpha_loss": Loss(of=("log_temperature",), inputs=("log_prob",)),
    }

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        # States are normalised only if a setting says so.
        return extract_transitions(raw)

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        mean, log_std = twin.actor(batch.observations)
        return {
            "mean": mean,
            "log_std": log_std,
            "critic": twin.critic(batch.observations, batch.actions),
            "critic_target": twin.critic_target(batch.next_observations, batch.actions),
        }

    def given(self, batch: Any, noise: Any) -> dict[str, Any]:
        # The first minibatch
        rows = len(noise.actor)
        return {
            "batch": type(batch)(*(column[:rows] for column in batch)),
            "target": noise.target[0],
            "subset": noise.subset[0],
            "actor": noise.actor,
        }

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {"log_prob": rng.normal(size=size)}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"ring": None}

    def call_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {
            "idle": sum(step < config.switch + config.learning_starts for step in range(start, start + num_updates))
        }


PAIR = Adapter(
    name="finetune/rlpd",
    title="RLPD",
    family=Family.FINETUNING,
    use="You can step the environment from the start: there is no offline phase, and it learns fast.",
    paper="Ball et al. 2023",
    url="https://arxiv.org/abs/2302.02948",
    benchmark_updates=2,
    variants={
        "default": SMALL,
        # An update is a single step of the critics, on an odd number of rows. All critics contribute to the target, no
        # layer is normalised, and the first action after the warm updates is the last uniform one.
        "single": SMALL
        | {"critic_updates": 1, "n_critics": 3, "n_target_critics": 3, "batch_size": 31, "critic_ln": False}
        | {"backup_entropy": False, "target_entropy": 0.0, "initial_temperature": 0.3, "discount": 0.9, "tau": 0.1}
        | {"actor_lr": 1e-3, "critic_lr": 3e-3, "temperature_lr": 1e-2}
        | {"offline_iterations": 25, "learning_starts": 6},
        # Here it is the policy's first one.
        "other": SMALL
        | {"critic_updates": 2, "n_target_critics": 1, "offline_iterations": 25, "learning_starts": 5}
        | {"target_entropy": -4.0, "temperature_lr": 1e-2, "hidden_dims": (32,)},
    },
    settings={
        "run": {"learning_starts": 0},
        "counted": {"critic_updates": 1},
        "timed": {"learning_starts": 0},
        "full size": {"critic_updates": 2},
    },
)
