"""The ladders of both frameworks, one change a rung; `tests/test_rungs.py` holds each to the one that ships."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import jax_rungs, torch_rungs
from benchmarks.subjects import Subject


@dataclass(frozen=True)
class Rung:
    """One way to make updates.

    Attributes:
        make: From a subject to a block of its updates.
        seeds: Runs that a block advances at once; its updates are shared out among them.
    """

    make: Callable[[Subject], Callable[[], Any]]
    seeds: int = 1

    def block(self, subject: Subject) -> Callable[[], Any]:
        """A block of about as much work on every rung."""
        return self.make(Subject(subject.name, subject.updates // self.seeds, subject.settings, subject.rows))

    def updates(self, subject: Subject) -> int:
        """The updates of a block, all seeds together."""
        return subject.updates // self.seeds * self.seeds


EAGER, COMPILED, SHIPPED = "PyTorch eager", "PyTorch compiled", "JAX scan"
# `torch.compile` has no gradient of a gradient, which EDAC's critics need; and it keeps CQL's temperature for the
# backward passes, before which the temperature takes its own step.
NOT_COMPILED = ("cql", "edac")
RUNGS = {
    "PyTorch, a sync each step": Rung(torch_rungs.synced),
    EAGER: Rung(torch_rungs.eager),
    COMPILED: Rung(torch_rungs.compiled),
    "JAX, host batches": Rung(jax_rungs.host_batches),
    "JAX, a call each step": Rung(jax_rungs.device_batches),
    SHIPPED: Rung(jax_rungs.scan),
    "JAX scan, 4 seeds": Rung(partial(jax_rungs.seeds, 4), 4),
    "JAX scan, 16 seeds": Rung(partial(jax_rungs.seeds, 16), 16),
}


def rungs_of(subject: Subject) -> list[str]:
    """Those that there are, with an update for each seed: one so large that a block holds few needs no second seed."""
    possible = [name for name in RUNGS if name != COMPILED or subject.name not in NOT_COMPILED]
    return [name for name in possible if RUNGS[name].updates(subject)]
