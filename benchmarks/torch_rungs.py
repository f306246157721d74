"""PyTorch's rungs: each function makes a block of updates, and differs from the previous one in one change.

A block runs a subject's updates and returns the trainer, which continues where the previous block stopped.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from benchmarks.subjects import Subject
from shared.frameworks import torch_data, torch_side

Metrics = dict[str, torch.Tensor]

# How often `torch.compile` may compile a function, as it does Adam's step for each optimiser of each rung in a process.
# Beyond the limit, which is 8 by default, PyTorch would continue uncompiled and only warn.
torch._dynamo.config.recompile_limit = 64
torch._dynamo.config.fail_on_recompile_limit_hit = True

# `torch.compile` has no gradient of a gradient, which EDAC's critics need. It also keeps the temperature of CQL and
# Cal-QL for the backward passes, although the temperature takes its own step before them. The temperatures of MOPO,
# COMBO and MOBILE get no gradient there at all.
NOT_COMPILED = (
    *("cql", "finetune/cql", "finetune/cal_ql", "edac"),
    *("model_based/mopo", "model_based/combo", "model_based/mobile"),
)


class Loop(NamedTuple):
    """The parts of the twin's loop over updates."""

    trainer: Any
    # Draws an update's indices and noise
    draw: Callable[[], tuple[Any, Any]]
    # Makes the update
    learn: Callable[[Any, Any], Metrics]


def loop(subject: Subject) -> Loop:
    """A fresh trainer, and the work that its `train` does for each update."""
    pair, twin = subject.pair, subject.pair.torch
    config = twin.TrainConfig(**subject.settings)
    trainer = twin.create_trainer(config, subject.shape, subject.action_dim, subject.max_action)
    device = torch_side.resolve_device(config.device)
    dataset = pair.ready(twin, torch_data.to_device(subject.columns, device), config)
    draws = pair.torch_draws(config, subject.columns, subject.action_dim, device)

    def draw() -> tuple[torch.Tensor, Any]:
        return draws(**pair.draw_statics(config, trainer.total_it + 1))

    def learn(indices: torch.Tensor, noise: Any) -> Metrics:
        return trainer.update(pair.take(twin, dataset, indices, config), noise)

    return Loop(trainer, draw, learn)


def compiled_loop(subject: Subject) -> Loop:
    """The same loop with `torch.compile`'s code for each loss, forward and backward, and for each step of Adam.

    The update as a whole is not compiled: IQL and CQL compute several losses before they step, which `torch.compile`
    cannot take apart.
    """
    made = loop(subject)
    for loss in subject.pair.losses:
        setattr(made.trainer, loss, torch.compile(getattr(made.trainer, loss)))
    for optimizer in optimizers(made.trainer):
        optimizer.step = torch.compile(optimizer.step)
    return made


def optimizers(trainer: Any) -> list[torch.optim.Optimizer]:
    """All optimisers of a trainer."""
    return [part for part in vars(trainer).values() if isinstance(part, torch.optim.Optimizer)]


def synced(subject: Subject) -> Callable[[], Any]:
    """CORL's loop: every metric is fetched from the device after every update."""
    trainer, draw, learn = loop(subject)

    def block() -> Any:
        for _ in range(subject.updates):
            for value in learn(*draw()).values():
                value.item()
        return trainer

    return block


def eager(subject: Subject) -> Callable[[], Any]:
    """The twin's own loop, in which the host never waits for the device within an interval."""
    return _unsynced(loop(subject), subject.updates)


def compiled(subject: Subject) -> Callable[[], Any]:
    """The twin's own loop with compiled code."""
    return _unsynced(compiled_loop(subject), subject.updates)


def _unsynced(loop: Loop, updates: int) -> Callable[[], Any]:
    def block() -> Any:
        for _ in range(updates):
            metrics = loop.learn(*loop.draw())
        wait(metrics)
        return loop.trainer

    return block


def wait(metrics: Metrics) -> None:
    """Returns when the device has computed the metrics."""
    next(iter(metrics.values())).item()
