"""A dynamics ensemble on the ladder. An update is an epoch on the ladder's few rows, and indices are their order."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from parity_tests.families import Family
from parity_tests.pair import Loss, Pair
from shared.data.dynamics import Split, extract_known, held_out_rows
from shared.data.transitions import Batch
from shared.envs.terminations import hopper
from shared.frameworks.twins import load_twin

# Chosen so that the ladder's rows do not fill a whole number of batches
HELD_OUT = 0.3
# Training continues whatever the held-out error does.
SMALL: dict[str, Any] = {"holdout_ratio": HELD_OUT, "max_epochs_since_update": 1000, "n_ensemble": 3, "n_elites": 2} | {
    "hidden_dims": (32, 20),
    "dynamics_weight_decay": (1e-3, 3e-3, 2e-3),
}
MODES = ("aleatoric", "pairwise-diff", "ensemble_std")


def load(raw: dict[str, np.ndarray]) -> Batch:
    """Transitions with a known next state, unchanged."""
    return extract_known(raw, "d4rl/hopper-v2")


def learnt_from(num_rows: int) -> int:
    """The number of training rows for each member."""
    return num_rows - held_out_rows(HELD_OUT, num_rows)


def ready(twin: Any, dataset: Any, config: Any) -> Any:
    """The dataset with the same split and bootstrap for both twins."""
    num_rows, rng = len(getattr(dataset, "rewards", dataset)), np.random.default_rng(4)
    size, order = learnt_from(num_rows), rng.permutation(num_rows)
    bootstrap = rng.integers(size, size=(config.n_ensemble, size))
    return twin.in_parts(dataset, Split(order[:size], order[size:], bootstrap))


def take(twin: Any, parts: Any, indices: Any, config: Any) -> Any:
    """An epoch; one-dimensional indices stand for an order that all members share."""
    if indices.ndim == 1:
        indices = (indices + 0 * parts.members[:, :1]) % parts.members.shape[1]
    return twin.take_epoch(parts, indices)


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Means, log-variances and errors on held-out rows."""
    mean, log_var = twin.dynamics(twin.inputs(batch.holdout))
    best_mean, _ = twin.best_dynamics(twin.inputs(batch.holdout))
    losses = twin.holdout_losses(batch.holdout)
    return {"mean": mean, "log_var": log_var, "best_mean": best_mean, "holdout_losses": losses}


def predicted(twin: Any, batch: Any) -> dict[str, Any]:
    """A step from held-out rows in each mode, and one without a penalty.

    Log-variances serve as normal draws, and the sign of the reward chooses an elite.
    """
    rows = batch.holdout
    _, log_var = twin.best_dynamics(twin.inputs(rows))
    model, predict = twin.model(hopper), type(twin).update.__globals__["predict"]
    found: dict[str, Any] = {}
    for mode, coef in [*((mode, 0.7) for mode in MODES), ("aleatoric", 0.0)]:
        hp = replace(twin.hp, penalty_coef=coef, uncertainty_mode=mode)
        step = predict(model, hp, rows.observations, rows.actions, log_var, 1 * (rows.rewards > 0.0))
        found |= {f"{mode} {coef} {name}": 1.0 * value for name, value in step._asdict().items()}
    return found


def corner(trainer: Any) -> None:
    """Scales inputs, moves log-variances beyond both bounds, and brings some members close to their best loss."""
    size = len(trainer.mean)
    trainer.mean.copy_(torch.linspace(-1.0, 1.0, size))
    trainer.std.copy_(torch.linspace(0.5, 2.0, size))
    trainer.dynamics.output_layer.weight.data.mul_(30.0)
    trainer.dynamics.min_logvar.data[0] = -40.0
    trainer.best_loss.copy_(torch.logspace(-3.0, 6.0, len(trainer.best_loss)).flip(0))


class Adapter(Pair):
    """This pair's overrides."""

    metric = "steps_followed"
    counted_updates = 2
    drawn_once = dict.fromkeys(("draw_split",), ())
    # Its batch is of rows that are held out.
    losses = {"model_loss": Loss(of=("dynamics",), inputs=("holdout",))}

    outputs = staticmethod(outputs)

    predicted = staticmethod(predicted)

    corner = staticmethod(corner)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (learnt_from(len(dataset.rewards)),)

    def torch_draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (load_twin("torch", "model_based/dynamics").Shuffle(learnt_from(len(dataset.rewards))),)

    def take(self, twin: ModuleType, dataset: Any, indices: Any, config: Any) -> Any:
        return take(twin, dataset, indices, config)

    ready = staticmethod(ready)

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        return load(raw)


PAIR = Adapter(
    name="model_based/dynamics",
    title="Dynamics ensemble",
    family=Family.MODEL,
    use="It predicts steps and its own uncertainty; MOPO, COMBO and MOBILE learn from its rollouts.",
    paper="Chua et al. 2018",
    url="https://arxiv.org/abs/1805.12114",
    benchmark_updates=1,
    variants={
        "default": SMALL,
        # Three layers, and batches that leave none of the made-up rows over. At a rate of 1e-3 the last bits would
        # double with every epoch on the bundled rows: 7e-8 after fifty of them, instead of 5e-15.
        "other": SMALL
        | {"n_ensemble": 4, "n_elites": 3, "learning_rate": 3e-4, "logvar_loss_coef": 0.05, "batch_size": 45}
        | {"hidden_dims": (24, 20, 16), "dynamics_weight_decay": (1e-3, 3e-3, 2e-3, 5e-3)},
    },
    settings={
        # One full batch and one with the remaining rows
        "counted": {"batch_size": 100},
        # Few steps, and small ones: large ones magnify the last bits faster than a run's tolerance allows.
        "run": {"env": "mini/hopper-mostly-expert", "n_rollouts": 10, "rollout_length": 3}
        | {"hidden_dims": (8,), "dynamics_weight_decay": (1e-4, 2e-4), "n_ensemble": 2}
        | {"batch_size": 8192, "learning_rate": 1e-4},
        "full size": {"holdout_ratio": HELD_OUT},
        "timed": {"holdout_ratio": HELD_OUT},
    },
    tolerances={
        # An epoch is several gradient steps, each of them rounded: 4e-5, and 1e-4 after eleven epochs. If rewards are
        # large, the lower bound's gradient is 1 - sigmoid(l - l_min), which is 5e-5 with the rounding of 1: 8e-4.
        # Several Adam steps in a recording, which rounds its corrections differently, give 6e-12.
        "float64": {"recording": 5e-11},
        "float32": {"update": 2e-3, "shipped path": 5e-4},
    },
)
