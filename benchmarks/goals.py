"""`python -m benchmarks.goals`: goal-conditioned updates per second, with goals drawn on the device and on the host.

A dataset has a million rows. The host's loop draws rows and goals with NumPy, and calls one compiled program for each
update, as OGBench's code does. Each program has its own process, and the programs of a case take turns.
"""

import argparse
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import cache
from typing import Any

from tqdm import tqdm

from benchmarks import jax_rungs
from benchmarks.blocks import Processes, in_turns, timed
from benchmarks.results import Block, numerics, write
from benchmarks.rungs import COMPILED, EAGER, RUNGS, SHIPPED
from benchmarks.subjects import Subject
from parity_tests.pairs import PAIRS
from shared.runs.configs import dataset_row
from shared.runs.machine import load, versions

HOST = "JAX, goals drawn on the host"
PROGRAMS = (EAGER, COMPILED, HOST, SHIPPED)
BUNDLED = "mini/pointmaze-medium-navigate"
ROWS, BLOCKS = 1_000_000, 3
# The updates in a block by size
UPDATES = {"bundled": 200, "published": 10}
# From the cheapest to the dearest update; one in both sizes
CASES = [f"goal_conditioned/{name}, bundled" for name in ("gcbc", "gcivl", "gciql", "hiql")]
CASES += ["goal_conditioned/gciql, published"]


def subject(case: str) -> Subject:
    """The subject of a case: an algorithm with the networks and batches of its bundled run, or of OGBench's runs."""
    name, size = case.split(", ")
    settings = dataset_row(PAIRS[name].jax.TrainConfig, name, BUNDLED) if size == "bundled" else {}
    return Subject(name, UPDATES[size], settings, ROWS)


@cache
def warm_block(case: str, program: str) -> Callable[[], Any]:
    """A program's block, compiled and run once."""
    make = jax_rungs.host_draws if program == HOST else RUNGS[program].block
    block = make(subject(case))
    block()
    return block


def prepare(case: str, program: str) -> None:
    """Prepares a block in the process of the caller."""
    warm_block(case, program)


def timed_block(case: str, program: str) -> Block:
    """Times one block."""
    return timed(warm_block(case, program))


def table(summary: Mapping[str, Any]) -> str:
    """Formats a results file as a Markdown table."""
    lines = [
        f"| algorithm, size | batch | {EAGER} | {COMPILED} | {HOST} | {SHIPPED} | over the host's "
        "| over PyTorch's best |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, found in summary["cases"].items():
        speeds = [found["programs"][program]["updates_per_second"]["max"] for program in PROGRAMS]
        eager, compiled, host, scan = speeds
        cells = " | ".join(f"{speed:.1f}" for speed in speeds)
        lines.append(
            f"| {case} | {found['batch_size']} | {cells} | **{scan / host:.2f}** "
            f"| **{scan / max(eager, compiled):.2f}** |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the table and writes `benchmarks/results/goals-<machine>.json`."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    before, cases = load(), {}
    with ExitStack() as stack:
        processes = {program: stack.enter_context(closing(Processes())) for program in PROGRAMS}
        for case in tqdm(CASES, unit="case"):
            made = subject(case)
            batch_size = made.pair.jax.TrainConfig(**made.settings).batch_size
            found = in_turns(processes, prepare, timed_block, case, made.updates, BLOCKS)
            cases[case] = {"batch_size": batch_size, "rows": ROWS, "programs": found}
    summary = {"versions": versions("torch", "jax", "jaxlib"), **numerics(), "load_before": before, "cases": cases}
    print(table(summary))
    write("goals", "goals", summary)


if __name__ == "__main__":
    main()
