"""PyTorch's ladder: each function makes a block of updates, one change after the other.

A block runs a subject's updates and returns the trainer, which goes on where the block before it stopped.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.subjects import ACTION_DIM, STATE_DIM, Subject
from shared import torch_side

Metrics = dict[str, torch.Tensor]


def _loop(subject: Subject) -> tuple[Any, Callable[[], Iterator[Metrics]]]:
    """A trainer, and its `train`'s loop over the updates of a block without anything around it."""
    pair = subject.pair
    config = pair.torch.TrainConfig(**subject.settings)
    trainer = pair.torch.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    device = torch_side.resolve_device(config.device)
    dataset = torch_side.to_device(subject.columns, device)
    draw = pair.torch_draws(config, subject.columns, ACTION_DIM, device)

    def updates() -> Iterator[Metrics]:
        for _ in range(subject.updates):
            indices, noise = draw()
            yield trainer.update(pair.take(pair.torch, dataset, indices, config), noise)

    return trainer, updates


def synced(subject: Subject) -> Callable[[], Any]:
    """As CORL's loop: every metric is fetched from the device after every update."""
    trainer, updates = _loop(subject)

    def block() -> Any:
        for metrics in updates():
            for value in metrics.values():
                value.item()
        return trainer

    return block


def eager(subject: Subject) -> Callable[[], Any]:
    """The twin's own loop: the host never waits for the device within an interval."""
    trainer, updates = _loop(subject)

    def block() -> Any:
        for metrics in updates():
            last = metrics
        next(iter(last.values())).item()  # waits for the device
        return trainer

    return block


def compiled(subject: Subject) -> Callable[[], Any]:
    """The same loop with `torch.compile`'s code for each loss, forward and backward, and for each step of Adam.

    Not for the update as a whole: IQL and CQL compute several losses before they step, which it cannot take apart.
    """
    trainer, updates = _loop(subject)
    for loss in subject.pair.losses:
        setattr(trainer, loss, torch.compile(getattr(trainer, loss)))
    for part in vars(trainer).values():
        if isinstance(part, torch.optim.Optimizer):
            part.step = torch.compile(part.step)

    def block() -> Any:
        for metrics in updates():
            last = metrics
        next(iter(last.values())).item()
        return trainer

    return block
