"""`python -m benchmarks.tricks`: the gain from each trick, removed from the default code or added to it.

The tricks are in `benchmarks/changes.py`. The two programs take turns, each in its own process, and blocks disturbed by
other jobs do not count.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import jax_rungs
from benchmarks.blocks import Processes, timed
from benchmarks.changes import TRICKS, Tried
from benchmarks.regression import Busy, undisturbed
from benchmarks.results import BLOCKS, Block, as_rate, numerics, spread, write
from benchmarks.subjects import UPDATES
from benchmarks.work import full_precision
from shared.runs.machine import load, versions

SHIPPED = "what ships"


@cache
def warm_block(algorithm: str, trick: str) -> Callable[[], Any]:
    """An interval of the twin with the trick, or of the default twin, compiled and run once."""
    changes = TRICKS[trick].changes if trick != SHIPPED else ()
    block = jax_rungs.scan(Tried(algorithm, UPDATES[algorithm], changes=changes))
    block()
    return block


def prepare(algorithm: str, trick: str) -> None:
    """Prepares a block in the process of the caller."""
    warm_block(algorithm, trick)


def timed_block(algorithm: str, trick: str) -> Block:
    """Times one block."""
    return timed(warm_block(algorithm, trick))


def measured(name: str, ships: Processes, tried: Processes) -> dict[str, Any]:
    """The speed of both programs, and how much longer an update takes with the trick.

    Raises:
        Busy: Other jobs left too few blocks undisturbed.
    """
    trick = TRICKS[name]
    ships.run(prepare, trick.of, SHIPPED)
    with patch.dict(os.environ, XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} {trick.flags}".strip()):
        tried.run(prepare, trick.of, name)
    pairs = undisturbed(
        name, partial(ships.run, timed_block, trick.of, SHIPPED), partial(tried.run, timed_block, trick.of, name)
    )
    seconds = {SHIPPED: [own.seconds for own, _ in pairs], "tried": [other.seconds for _, other in pairs]}
    rates = {side: UPDATES[trick.of] / np.array(values) for side, values in seconds.items()}
    return {
        "algorithm": trick.of,
        "updates_per_second": {side: spread(rate) for side, rate in rates.items()},
        "times_as_long": rates[SHIPPED].max() / rates["tried"].max(),
    }


def table(summary: Mapping[str, Any]) -> str:
    """Formats a results file as a Markdown table."""
    lines = [
        "| change | algorithm | updates/s | unchanged | an update takes |",
        "|---|---|---|---|---|",
    ]
    for name, found in summary["tricks"].items():
        ours, tried = (found["updates_per_second"][side]["max"] for side in (SHIPPED, "tried"))
        lines.append(
            f"| {name} | {found['algorithm']} | {as_rate(tried)} | {as_rate(ours)} "
            f"| {found['times_as_long']:.2f} times as long |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the table and writes `benchmarks/results/tricks-<machine>.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    full_precision()  # as in the processes that measure
    before, found = load(), {}
    with closing(Processes()) as ships:
        for name in TRICKS:
            with closing(Processes()) as tried:
                try:
                    found[name] = measured(name, ships, tried)
                except Busy as busy:
                    parser.error(str(busy))
    facts = {"load_before": before, "versions": versions("jax", "jaxlib"), **numerics()}
    summary = {**facts, "blocks": BLOCKS, "tricks": found}
    print(table(summary))
    write("tricks", "tricks", summary)


if __name__ == "__main__":
    main()
