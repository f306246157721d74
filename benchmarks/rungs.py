"""The rungs of both frameworks, with one change each; `tests/benchmarks/test_rungs.py` compares their updates."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks import cuda_graphs, jax_rungs, torch_rungs
from benchmarks.subjects import Subject, subject


@dataclass(frozen=True)
class Rung:
    """One way to make updates.

    Attributes:
        make: Makes a block of a subject's updates.
        seeds: Runs that a block advances at once, which share its updates.
        exists: Whether the rung exists here for the algorithm with this name.
    """

    make: Callable[[Subject], Callable[[], Any]]
    seeds: int = 1
    exists: Callable[[str], bool] = lambda name: True

    def block(self, subject: Subject) -> Callable[[], Any]:
        """A block with about the same amount of work on every rung."""
        return self.make(replace(subject, updates=subject.updates // self.seeds))

    def updates(self, subject: Subject) -> int:
        """The updates of a block, counting all seeds together."""
        return subject.updates // self.seeds * self.seeds


def on_cuda(name: str) -> bool:
    """Whether there is an NVIDIA GPU and the algorithm's updates do not differ too much to be recorded."""
    few = cuda_graphs.recorded_updates(1, subject(name)) <= cuda_graphs.MOST_RECORDINGS
    return torch.cuda.is_available() and few


EAGER, COMPILED, SHIPPED = "PyTorch eager", "PyTorch compiled", "JAX scan"
RUNGS = {
    "PyTorch, a sync each step": Rung(torch_rungs.synced),
    EAGER: Rung(torch_rungs.eager),
    COMPILED: Rung(torch_rungs.compiled, exists=lambda name: name not in torch_rungs.NOT_COMPILED),
    "PyTorch, a CUDA graph an update": Rung(partial(cuda_graphs.graphs, 1), exists=on_cuda),
    "PyTorch, a CUDA graph of 20": Rung(partial(cuda_graphs.graphs, 20), exists=on_cuda),
    "JAX, host batches": Rung(jax_rungs.host_batches),
    "JAX, a call each step": Rung(jax_rungs.device_batches),
    SHIPPED: Rung(jax_rungs.scan),
    "JAX scan, 4 seeds": Rung(partial(jax_rungs.seeds, 4), 4),
    "JAX scan, 16 seeds": Rung(partial(jax_rungs.seeds, 16), 16),
}


def rungs_of(subject: Subject) -> list[str]:
    """The rungs that exist for a subject and have an update for each seed; large updates do not need many seeds."""
    return [name for name, rung in RUNGS.items() if rung.exists(subject.name) and rung.updates(subject)]
