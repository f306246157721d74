"""`python -m benchmarks.growth`: how updates per second and memory change with what an update is made of.

Each point changes one of the algorithm's defaults: the batch, the critics, the width of their layers, the dataset's
rows, or the seeds that a JAX program trains at once. Each point runs in a separate process.
"""

import argparse
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.blocks import timed
from benchmarks.jax_rungs import interval
from benchmarks.memory import forget_peak, peak
from benchmarks.results import DISTURBED, numerics, spread, write
from benchmarks.rungs import EAGER, RUNGS, SHIPPED, Rung
from benchmarks.subjects import ROWS, Subject
from benchmarks.work import full_precision, matmul_flops, matmul_peak
from shared.runs.machine import load, versions

# This algorithm has settings for the number of critics and for the width of all layers.
NAME = "sac_n"
DEFAULTS = {"batch_size": 256, "n_critics": 10, "hidden_dim": 256, "rows": ROWS, "seeds": 1}
# The sizes to change, and their values
AXES: Mapping[str, tuple[int, ...]] = {
    "batch_size": (16, 256, 4096),
    "n_critics": (2, 10, 50),
    "hidden_dim": (64, 256, 1024),
    "rows": (100_000, 1_000_000, 10_000_000),
    "seeds": (1, 4, 16),
}
SIDES = {"torch": EAGER, "jax": SHIPPED}
# A block's work in matrix products, in 1e9 operations, and the limits for its updates; the number of blocks at a point
_GFLOP, _LEAST, _MOST, _BLOCKS = 30.0, 4, 100, 3


@dataclass(frozen=True)
class Point:
    """A number of updates per second to be measured.

    Attributes:
        side: `torch` or `jax`.
        changed: The sizes that differ from `DEFAULTS`.
    """

    side: str
    changed: Mapping[str, int] = field(default_factory=dict)

    def subject(self, updates: int) -> Subject:
        """The subject that is timed."""
        settings = {name: value for name, value in self.changed.items() if name not in ("rows", "seeds")}
        return Subject(NAME, updates, settings, self.changed.get("rows", ROWS))

    def rung(self) -> Rung:
        """The rung that times it."""
        seeds = self.changed.get("seeds", 1)
        return next(rung for name, rung in RUNGS.items() if name.startswith(SIDES[self.side]) and rung.seeds == seeds)


def points() -> list[Point]:
    """All points, each once; only JAX trains several seeds at once."""
    found: list[Point] = []
    for axis, values in AXES.items():
        for value in values:
            for side in SIDES:
                point = Point(side, {axis: value} if value != DEFAULTS[axis] else {})
                if point not in found and (side == "jax" or axis != "seeds"):
                    found.append(point)
    return found


def measured(point: Point) -> dict[str, Any]:
    """Updates per second of all seeds together, memory, and the work in an update; should run in a separate process."""
    full_precision()
    seeds = point.changed.get("seeds", 1)
    train, arguments = interval(point.subject(_LEAST))
    gflop = matmul_flops(jax.make_jaxpr(train)(*arguments).jaxpr) / _LEAST / 1e9
    del train, arguments
    updates = seeds * int(np.clip(_GFLOP / gflop / seeds, _LEAST, _MOST))
    subject, rung = point.subject(updates), point.rung()
    fastest = matmul_peak()
    forget_peak()
    block = rung.block(subject)
    block()
    blocks = [timed(block) for _ in range(_BLOCKS)]
    rates = rung.updates(subject) / np.array([found.seconds for found in blocks])
    return {
        "side": point.side,
        "changed": dict(point.changed),
        "gflop_per_update": gflop,
        "updates_per_block": rung.updates(subject),
        "updates_per_second": spread(rates),
        "blocks_undisturbed": sum(found.others < DISTURBED for found in blocks),
        "matmul_peak_gflops": fastest,
        "gib": peak(),
    }


def in_its_own_process(point: Point) -> dict[str, Any]:
    """The result of `measured`, in a process without leftovers from another point."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measured, point).result()


def along(summary: Mapping[str, Any], axis: str, side: str) -> dict[int, Mapping[str, Any]]:
    """The points of a results file that differ from the defaults in this size only, by its value."""
    found = {}
    for point in summary["points"]:
        if point["side"] == side and point["changed"].keys() <= {axis}:
            found[point["changed"].get(axis, DEFAULTS[axis])] = point
    return dict(sorted(found.items()))


def share_of_peak(summary: Mapping[str, Any], point: Mapping[str, Any]) -> float:
    """The rate of a point's products as a share of the fastest large product in the file."""
    fastest = max(other["matmul_peak_gflops"] for other in summary["points"])
    return point["gflop_per_update"] * point["updates_per_second"]["max"] / fastest


def table(summary: Mapping[str, Any]) -> str:
    """Formats a results file as a Markdown table."""
    lines = [
        "| changed | value | GFLOP per update | PyTorch eager, updates/s | JAX scan, updates/s | over eager "
        "| share of matmul peak, PyTorch and JAX | GiB, PyTorch and JAX |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for axis, values in AXES.items():
        eager, scan = (along(summary, axis, side) for side in SIDES)
        for value in values:
            # Only JAX trains several seeds at once.
            sides = [scan[value]] if axis == "seeds" else [eager[value], scan[value]]
            rates = [point["updates_per_second"]["max"] for point in sides]
            torch, over = ("", "") if axis == "seeds" else (f"{rates[0]:.1f}", f"**{rates[1] / rates[0]:.2f}**")
            shares = ", ".join(f"{share_of_peak(summary, point):.0%}" for point in sides)
            memory = ", ".join(f"{point['gib']:.1f}" for point in sides)
            lines.append(
                f"| `{axis}` | {value:,} | {scan[value]['gflop_per_update']:.2f} | {torch} | {rates[-1]:.1f} "
                f"| {over} | {shares} | {memory} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the table and writes `benchmarks/results/growth-<machine>.json`."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    before = load()
    found = [in_its_own_process(point) for point in tqdm(points(), unit="point")]
    summary = {
        "versions": versions("torch", "jax", "jaxlib", "numpy"),
        **numerics(),
        "load_before": before,
        "algorithm": NAME,
        "points": found,
    }
    print(table(summary))
    write("growth", "growth", summary)


if __name__ == "__main__":
    main()
