"""`python -m benchmarks.lookups`: the cost of looking for a twin's file, and its effect on ratios over PyTorch.

The timed PyTorch loops did so at every update from 2026-11-22 to 2026-11-29. The rates of the default code come from
this machine's `shipped-<machine>.json`; the rates with the look-up follow from its time.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.results import best, results_file, write
from benchmarks.rungs import EAGER, SHIPPED
from shared.frameworks.twins import load_twin
from shared.runs.machine import hardware, load

_TRIES = 200


def seconds_of_a_lookup() -> float:
    """The median time of finding and importing a twin that is already imported."""
    load_twin("torch", "td3_bc")
    times = []
    for _ in range(_TRIES):
        begin = time.perf_counter()
        load_twin.__wrapped__("torch", "td3_bc")
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def table(summary: Mapping[str, Any]) -> str:
    """Formats a results file as a Markdown table."""
    lines = [
        f"| algorithm | {EAGER} | {EAGER}, with a look-up | {SHIPPED} | over eager | over eager, with a look-up "
        "| too high by |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rates in summary["algorithms"].items():
        eager, scan = rates[EAGER], rates[SHIPPED]
        charged = 1.0 / (1.0 / eager + summary["seconds_of_a_lookup"])
        lines.append(
            f"| {name} | {eager:.2f} | {charged:.2f} | {scan:.2f} | **{scan / eager:.2f}** | {scan / charged:.2f} "
            f"| {eager / charged - 1.0:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures a look-up, prints the table and writes `benchmarks/results/lookups-<machine>.json`."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    shipped = json.loads(results_file("shipped", hardware()).read_text())["algorithms"]
    both = {name: found for name, found in shipped.items() if EAGER in found["rungs"]}
    rates = {name: {rung: best(found, rung) for rung in (EAGER, SHIPPED)} for name, found in both.items()}
    summary = {"load_before": load(), "seconds_of_a_lookup": seconds_of_a_lookup(), "algorithms": rates}
    print(table(summary))
    write("lookups", "lookups", summary)


if __name__ == "__main__":
    main()
