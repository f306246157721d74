"""`python -m benchmarks.images`: updates per second of pairs that read images, with XLA's own convolution too.

The made-up images have the sizes of MinAtar's games, of Atari's and of silhouettes. Each program has its own process,
and the three programs of a case take turns.
"""

import argparse
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

from tqdm import tqdm

from benchmarks.blocks import Processes, in_turns, timed
from benchmarks.results import Block, numerics, write
from benchmarks.rungs import EAGER, RUNGS, SHIPPED
from benchmarks.subjects import Subject
from shared.envs.spaces import axes
from shared.frameworks import jax_encoders
from shared.runs.machine import load, versions

CONVOLUTION = "JAX scan, XLA's convolution"
PROGRAMS = (EAGER, SHIPPED, CONVOLUTION)
ROWS, BLOCKS = 5_000, 3


@dataclass(frozen=True)
class Case:
    """A pair, and the images that it reads.

    Attributes:
        frames: Channels, height and width.
        encoder: The encoder that reads them.
        frame_stack: The number of frames in an observation.
        updates: The number of updates in a block.
        others: Further settings.
    """

    frames: tuple[int, int, int]
    encoder: str
    frame_stack: int
    updates: int
    others: Mapping[str, Any] = field(default_factory=dict)

    def subject(self, name: str) -> Subject:
        """The subject that is timed."""
        settings = {"encoder": self.encoder, "frame_stack": self.frame_stack, **self.others}
        return Subject(name, self.updates, settings, ROWS, self.frames)


GAME = Case((6, 10, 10), "minatar", 1, 200)
CASES = {
    **dict.fromkeys(("discrete/bc", "discrete/bcq", "discrete/cql", "discrete/iql", "discrete/sac"), GAME),
    "online/dqn": Case((1, 84, 84), "nature", 4, 8),
    "any_percent_bc": Case((1, 64, 64), "nature", 3, 8, {"batch_size": 64, "normalize": False}),
    "iql": Case((1, 64, 64), "nature", 3, 4, {"batch_size": 64, "normalize": False}),
    "sac": Case((1, 64, 64), "nature", 3, 4, {"batch_size": 64}),
}
"""By the pair's name."""


@cache
def warm_block(name: str, program: str) -> Callable[[], Any]:
    """A program's block, compiled and run once."""
    rung = RUNGS[EAGER if program == EAGER else SHIPPED]
    with convolving() if program == CONVOLUTION else nullcontext():
        block = rung.block(CASES[name].subject(name))
        block()
    return block


def convolving() -> AbstractContextManager:
    """Makes encoders that are compiled in this context use XLA's convolution, on processors too."""
    return patch.object(jax_encoders, "as_product", jax_encoders.as_convolution)


def prepare(name: str, program: str) -> None:
    """Prepares a block in the process of the caller."""
    warm_block(name, program)


def timed_block(name: str, program: str) -> Block:
    """Times one block."""
    return timed(warm_block(name, program))


def table(summary: Mapping[str, Any]) -> str:
    """Formats a results file as a Markdown table."""
    lines = [
        f"| algorithm | images | encoder | batch | {EAGER} | {SHIPPED} | over eager | {CONVOLUTION} "
        "| undisturbed blocks |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in summary["cases"].items():
        eager, scan, convolution = (found["programs"][program]["updates_per_second"]["max"] for program in PROGRAMS)
        size = " x ".join(map(str, found["image"]))
        undisturbed = ", ".join(str(found["programs"][program]["blocks_undisturbed"]) for program in PROGRAMS)
        lines.append(
            f"| {name} | {size} | {found['encoder']} | {found['batch_size']} | {eager:.1f} | {scan:.1f} "
            f"| **{scan / eager:.2f}** | {convolution:.1f} | {undisturbed} of {BLOCKS} |"
        )
    return "\n".join(lines)


def facts(name: str) -> dict[str, Any]:
    """The image in an observation, the encoder that reads it, and the rows of a batch."""
    subject = CASES[name].subject(name)
    config = subject.pair.jax.TrainConfig(**subject.settings)
    return {"image": list(axes(subject.shape)), "encoder": config.encoder, "batch_size": config.batch_size}


def main() -> None:
    """Measures, prints the table and writes `benchmarks/results/images-<machine>.json`."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    before, cases = load(), {}
    with ExitStack() as stack:
        processes = {program: stack.enter_context(closing(Processes())) for program in PROGRAMS}
        for name in tqdm(CASES, unit="case"):
            found = in_turns(processes, prepare, timed_block, name, CASES[name].updates, BLOCKS)
            cases[name] = {**facts(name), "programs": found}
    summary = {"versions": versions("torch", "jax", "jaxlib"), **numerics(), "load_before": before, "cases": cases}
    print(table(summary))
    write("images", "images", summary)


if __name__ == "__main__":
    main()
