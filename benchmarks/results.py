"""Results files: what was measured, on what, and how."""

import json
import re
from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from benchmarks.sides import ACTION_DIM, ROWS, SIDES, STATE_DIM, UPDATES
from shared.files import write_atomically
from shared.machine import hardware, load, versions

FOLDER = Path(__file__).parent / "results"
BLOCKS = 5


class Results:
    """Seconds of each block, by algorithm and side, and what they mean."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.gflop: dict[str, float] = {}
        self.peak = 0.0
        self.loads: list[float] = [load()]

    def add(self, name: str, side: str, seconds: float) -> None:
        """One block."""
        self.seconds[name][side].append(seconds)
        self.loads.append(load())

    def complete(self, names: Collection[str]) -> bool:
        """Whether there are such algorithms, and every side of each has all its blocks."""
        blocks = [len(self.seconds.get(name, {}).get(side, [])) for name in names for side in SIDES]
        return bool(blocks) and min(blocks) >= BLOCKS

    def rates(self, name: str, side: str) -> np.ndarray:
        """Updates per second of each block."""
        return UPDATES[name] / np.array(self.seconds[name][side])

    def summary(self) -> dict[str, Any]:
        """What the results file holds."""
        device = jax.devices()[0]
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "command": self.command,
            "hardware": {"device": f"{device.platform} ({device.device_kind})", **hardware()},
            "load": {"before": self.loads[0], "highest": max(self.loads)},
            "versions": versions("torch", "jax", "jaxlib", "flax", "optax", "numpy"),
            "precision": {"dtype": "float32", "torch": torch.get_float32_matmul_precision(), "jax": _jax_precision()},
            "torch_threads": torch.get_num_threads(),
            "matmul_peak_gflops": self.peak,
            "dataset": {"rows": ROWS, "state_dim": STATE_DIM, "action_dim": ACTION_DIM},
            "algorithms": {name: self._algorithm(name) for name in self.seconds},
        }

    def _algorithm(self, name: str) -> dict[str, Any]:
        sides = {side: self._side(name, side) for side in self.seconds[name]}
        torch_best, jax_best = (sides[side]["updates_per_second"]["max"] for side in SIDES)
        return {
            "gflop_per_update": self.gflop[name],
            "updates_per_block": UPDATES[name],
            "sides": sides,
            "jax_over_torch": jax_best / torch_best,
        }

    def _side(self, name: str, side: str) -> dict[str, Any]:
        rates = self.rates(name, side)
        return {
            "blocks": len(rates),
            "updates_per_second": {"min": rates.min(), "median": float(np.median(rates)), "max": rates.max()},
            "share_of_matmul_peak": self.gflop[name] * rates.max() / self.peak,
        }

    def write(self) -> Path:
        """Writes the file of this machine, named after its device."""
        summary = self.summary()
        path = results_file("updates", summary["hardware"])
        write_atomically(path, (json.dumps(summary, indent=2, default=float) + "\n").encode())
        return path

    def table(self) -> str:
        """The results as Markdown."""
        return table(self.summary())


def table(summary: dict[str, Any]) -> str:
    """A results file as a Markdown table: each side's best block, since other jobs only ever slow one down."""
    lines = [
        "| algorithm | GFLOP per update | side | updates/s (min, median, best) | share of matmul peak | over PyTorch |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in summary["algorithms"].items():
        first = next(iter(found["sides"].values()))["updates_per_second"]["max"]
        for side, values in found["sides"].items():
            rate = values["updates_per_second"]
            lines.append(
                f"| {name} | {found['gflop_per_update']:.2f} | {side} | {rate['min']:.1f}, {rate['median']:.1f}, "
                f"**{rate['max']:.1f}** | {values['share_of_matmul_peak']:.0%} | {rate['max'] / first:.2f} |"
            )
    return "\n".join(lines)


def results_file(kind: str, machine: dict[str, Any]) -> Path:
    """Where this machine's results of a kind are kept."""
    name = f"{kind}-{(machine['gpus'] or [machine['cpu']])[0]}-{machine['cores']}-cores"
    return FOLDER / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def _jax_precision() -> str:
    return str(jax.config.jax_default_matmul_precision or "default")
