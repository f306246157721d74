"""PyTorch's last rungs: updates as CUDA graphs, which the GPU repeats without being asked for each kernel.

A graph repeats what was recorded: the same kernels on the same memory, and every number of Python's as it was then. So
what an update draws is copied to where the recording reads it. A learning rate that Python would compute is computed on
the device. Updates that differ, as a delayed policy's, have recordings of their own.
"""

import math
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.subjects import Subject
from benchmarks.torch_rungs import NOT_COMPILED, Loop, Metrics, compiled_loop, loop, optimizers, wait

# Runs of everything that is recorded, before: libraries and optimisers make their buffers, the compiler its variants.
WARM_UPS = 3

# More are not tried. Where targets are copied every 8,000 updates, 8,000 would be needed.
MOST_RECORDINGS = 100


class CudaGraphs:
    """How PyTorch records on a GPU."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Where to run what will be recorded: on a stream of its own, as recording does."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield
        torch.cuda.current_stream().wait_stream(side)

    def record(self, work: Callable[[], Metrics]) -> tuple[Callable[[], None], Metrics]:
        """A function that repeats the work, which is not done yet, and the place of its metrics."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            metrics = work()
        return graph.replay, metrics


def graphs(length: int, subject: Subject) -> Callable[[], Any]:
    """Compiled updates where there are such, `length` of them a graph, or fewer where a block is no multiple of it."""
    make = loop if subject.name in NOT_COMPILED else compiled_loop
    return recorded(make(on_device(subject)), length, subject, CudaGraphs())


def on_device(subject: Subject) -> Subject:
    """The subject with settings under which its updates ask the host for nothing, which no graph could record."""
    return replace(subject, settings={**subject.settings, **subject.pair.settings.get("on device", {})})


def recorded(made: Loop, length: int, subject: Subject, recorder: CudaGraphs) -> Callable[[], Any]:
    """A block of repeated recordings; what is run before it to warm up are updates too, see `updates_before`."""
    _move_to_the_device(made.trainer, subject)
    length, number = math.gcd(length, subject.updates), recorded_updates(length, subject)
    with recorder.aside():
        memory = [_copied(made.draw()) for _ in range(number)]
        for i in range(WARM_UPS):
            for place in memory:
                if i:
                    _fill(place, made.draw())
                made.learn(*place)
    parts = [memory[i : i + length] for i in range(0, number, length)]
    turns = cycle([(part, *recorder.record(partial(_learn_all, made, part))) for part in parts])

    def block() -> Any:
        for part, replay, metrics in islice(turns, subject.updates // length):
            for place in part:
                _fill(place, made.draw())
            replay()
            last = metrics
        wait(last)
        return made.trainer

    return block


def updates_before(length: int, subject: Subject) -> int:
    """The updates of all warm-ups."""
    return WARM_UPS * recorded_updates(length, subject)


def recorded_updates(length: int, subject: Subject) -> int:
    """The updates that are recorded: whole graphs, and whole periods of delayed updates."""
    config = subject.pair.torch.TrainConfig(**subject.settings)
    periods = [getattr(config, name, 1) for name in ("policy_freq", "target_update_period")]
    return math.lcm(math.gcd(length, subject.updates), *periods)


def _learn_all(made: Loop, part: list[tuple[Any, Any]]) -> Metrics:
    return [made.learn(*place) for place in part][-1]


def _copied(draws: tuple[Any, Any]) -> tuple[Any, Any]:
    return tree_map_only(torch.Tensor, torch.clone, draws)


def _fill(place: tuple[Any, Any], draws: tuple[Any, Any]) -> None:
    for old, new in zip(tree_leaves(place), tree_leaves(draws), strict=True):
        if new is not None:
            old.copy_(new)


def _move_to_the_device(trainer: Any, subject: Subject) -> None:
    """Everything that an update would have Python count or compute."""
    for optimizer in optimizers(trainer):
        for group in optimizer.param_groups:
            group["capturable"] = True
    if hasattr(trainer, "actor_lr_schedule"):
        trainer.actor_lr_schedule = _Cosine(trainer.actor_lr_schedule)
    if subject.name == "dt":
        _count_on_the_device(trainer, subject.pair.torch)


class _Cosine:
    """PyTorch's `CosineAnnealingLR` in closed form, down to 0."""

    def __init__(self, schedule: torch.optim.lr_scheduler.CosineAnnealingLR) -> None:
        (self._first,), self._period = schedule.base_lrs, schedule.T_max
        (group,) = schedule.optimizer.param_groups
        device = group["params"][0].device
        self._rate = group["lr"] = torch.tensor(self._first, device=device)
        self._count = torch.zeros((), device=device)

    def step(self) -> None:
        """The next update's learning rate."""
        self._count += 1.0
        self._rate.copy_(self._first * (1.0 + torch.cos(math.pi * self._count / self._period)) / 2.0)


def _count_on_the_device(trainer: Any, twin: types.ModuleType) -> None:
    """DT's warm-up: Python's `min` of its `learning_rate` would wait for the device."""

    def learning_rate(hp: Any, updates: torch.Tensor) -> torch.Tensor:
        return hp.learning_rate * torch.clamp((updates + 1.0) / hp.warmup_steps, max=1.0)

    # `update` makes a tensor of the rate that it logs, which is one already.
    warnings.filterwarnings("ignore", "To copy construct from a tensor")
    trainer.total_it = torch.zeros((), device=next(trainer.model.parameters()).device)
    update = types.FunctionType(twin.DT.update.__code__, vars(twin) | {"learning_rate": learning_rate})
    trainer.update = types.MethodType(update, trainer)
