"""PyTorch's last rungs: updates as CUDA graphs, which the GPU repeats without separate launches of each kernel.

A graph repeats a recording: the same kernels on the same memory, with every Python number as it was then. Therefore an
update's draws are copied to the memory that the recording reads. A learning rate that Python would compute is computed
on the device. Updates that differ, such as a delayed policy's, have separate recordings.
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

# How often everything runs before it is recorded: libraries and optimisers allocate buffers, the compiler its variants.
WARM_UPS = 3

# More recordings are not tried. If targets are copied every 8,000 updates, 8,000 would be needed.
MOST_RECORDINGS = 100


class CudaGraphs:
    """PyTorch's recording on a GPU."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context for work that will be recorded, on a separate stream, as recording requires."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield
        torch.cuda.current_stream().wait_stream(side)

    def record(self, work: Callable[[], Metrics]) -> tuple[Callable[[], None], Metrics]:
        """Records the work without doing it; returns a function that repeats it, and the memory of its metrics."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            metrics = work()
        return graph.replay, metrics


def graphs(length: int, subject: Subject) -> Callable[[], Any]:
    """Repeats updates, compiled if possible, with `length` of them per graph, or a divisor that fits the block."""
    make = loop if subject.name in NOT_COMPILED else compiled_loop
    return recorded(make(on_device(subject)), length, subject, CudaGraphs())


def on_device(subject: Subject) -> Subject:
    """The subject with settings under which its updates never wait for the host, which no graph could record."""
    return replace(subject, settings={**subject.settings, **subject.pair.settings.get("on device", {})})


def recorded(made: Loop, length: int, subject: Subject, recorder: CudaGraphs) -> Callable[[], Any]:
    """Makes a block of repeated recordings; the warm-up runs are updates too, see `updates_before`."""
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
    """The number of updates in all warm-ups."""
    return WARM_UPS * recorded_updates(length, subject)


def recorded_updates(length: int, subject: Subject) -> int:
    """The number of recorded updates: whole graphs, and whole periods of delayed updates."""
    config = subject.pair.torch.TrainConfig(**subject.settings)
    periods = [getattr(config, name, 1) for name in ("policy_freq", "target_update_period", "ema_period")]
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
    """Moves everything that Python would count or compute in an update to the device."""
    for optimizer in optimizers(trainer):
        for group in optimizer.param_groups:
            group["capturable"] = True
    if hasattr(trainer, "actor_lr_schedule"):
        trainer.actor_lr_schedule = _Cosine(trainer.actor_lr_schedule)
    if subject.name == "dt":
        _count_on_the_device(trainer, subject.pair.torch)


class _Cosine:
    """PyTorch's `CosineAnnealingLR` in closed form, with the minimum 0."""

    def __init__(self, schedule: torch.optim.lr_scheduler.CosineAnnealingLR) -> None:
        (self._first,), self._period = schedule.base_lrs, schedule.T_max
        (group,) = schedule.optimizer.param_groups
        device = group["params"][0].device
        self._rate = group["lr"] = torch.tensor(self._first, device=device)
        self._count = torch.zeros((), device=device)

    def step(self) -> None:
        """Sets the next update's learning rate."""
        self._count += 1.0
        self._rate.copy_(self._first * (1.0 + torch.cos(math.pi * self._count / self._period)) / 2.0)


def _count_on_the_device(trainer: Any, twin: types.ModuleType) -> None:
    """Counts DT's warm-up on the device: Python's `min` in its `learning_rate` would wait for the device."""

    def learning_rate(hp: Any, updates: torch.Tensor) -> torch.Tensor:
        return hp.learning_rate * torch.clamp((updates + 1.0) / hp.warmup_steps, max=1.0)

    # `update` makes a tensor of the logged rate, which already is one.
    warnings.filterwarnings("ignore", "To copy construct from a tensor")
    trainer.total_it = torch.zeros((), device=next(trainer.model.parameters()).device)
    update = types.FunctionType(twin.DT.update.__code__, vars(twin) | {"learning_rate": learning_rate})
    trainer.update = types.MethodType(update, trainer)
