"""Results files: what was measured, on what, and how."""

import json
import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from benchmarks.rungs import EAGER, RUNGS, SHIPPED
from benchmarks.subjects import ACTION_DIM, ROWS, STATE_DIM, subject
from shared.files import write_atomically
from shared.runs.machine import hardware, load, versions

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "results"
BLOCKS = 5


# Of a machine's processor time, what others may take before a block no longer counts
DISTURBED = 0.05


class Block(NamedTuple):
    """How long a block took, and the share of the machine that other jobs had meanwhile."""

    seconds: float
    others: float


class Results:
    """Blocks by algorithm and rung, and what they mean."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.blocks: dict[str, dict[str, list[Block]]] = defaultdict(lambda: defaultdict(list))
        self.gflop: dict[str, float] = {}
        self.peak = 0.0
        self.load_before = load()

    def add(self, name: str, rung: str, block: Block) -> None:
        """One block."""
        self.blocks[name][rung].append(block)

    def complete(self, names: Collection[str]) -> bool:
        """Whether there are such algorithms, and the rung that ships on either side has all its blocks for each."""
        blocks = [len(self.blocks.get(name, {}).get(rung, [])) for name in names for rung in (EAGER, SHIPPED)]
        return bool(blocks) and min(blocks) >= BLOCKS

    def rates(self, name: str, rung: str) -> np.ndarray:
        """Updates per second of each block that no other job disturbed; of all of them if there is none such."""
        blocks = self.blocks[name][rung]
        counted = [seconds for seconds, others in blocks if others < DISTURBED] or [seconds for seconds, _ in blocks]
        return RUNGS[rung].updates(subject(name)) / np.array(counted)

    def summary(self) -> dict[str, Any]:
        """What the results file holds."""
        device = jax.devices()[0]
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "command": self.command,
            "hardware": {"device": f"{device.platform} ({device.device_kind})", **hardware()},
            "load_before": self.load_before,
            "versions": versions("torch", "jax", "jaxlib", "flax", "optax", "numpy"),
            **numerics(),
            "matmul_peak_gflops": self.peak,
            "dataset": {"rows": ROWS, "state_dim": STATE_DIM, "action_dim": ACTION_DIM},
            "algorithms": {name: self._algorithm(name) for name in self.blocks},
        }

    def _algorithm(self, name: str) -> dict[str, Any]:
        return {
            "gflop_per_update": self.gflop[name],
            "rungs": {rung: self._rung(name, rung) for rung in self.blocks[name]},
        }

    def _rung(self, name: str, rung: str) -> dict[str, Any]:
        rates, others = self.rates(name, rung), [share for _, share in self.blocks[name][rung]]
        return {
            "updates_per_block": RUNGS[rung].updates(subject(name)),
            "blocks": len(others),
            "blocks_counted": len(rates),
            "share_of_other_jobs": max(others),
            "updates_per_second": {"min": rates.min(), "median": float(np.median(rates)), "max": rates.max()},
            "share_of_matmul_peak": self.gflop[name] * rates.max() / self.peak,
        }

    def write(self) -> Path:
        """Writes the file of this machine, named after its device."""
        summary = self.summary()
        return _written("updates", summary)

    def table(self) -> str:
        """The results as Markdown."""
        return table(self.summary())


def best(found: dict[str, Any], rung: str) -> float:
    """The best block of a rung, in updates per second: other jobs only ever slow one down."""
    return found["rungs"][rung]["updates_per_second"]["max"]


def table(summary: dict[str, Any]) -> str:
    """A results file as a Markdown table, every rung of both ladders."""
    lines = [
        f"| algorithm | rung | updates/s (min, median, best) | share of matmul peak | over {EAGER} |",
        "|---|---|---|---|---|",
    ]
    for name, found in summary["algorithms"].items():
        for rung, values in found["rungs"].items():
            rate = values["updates_per_second"]
            lines.append(
                f"| {name} | {rung} | {rate['min']:.1f}, {rate['median']:.1f}, **{rate['max']:.1f}** "
                f"| {values['share_of_matmul_peak']:.0%} | {rate['max'] / best(found, EAGER):.2f} |"
            )
    return "\n".join(lines)


def short_table(summary: dict[str, Any]) -> str:
    """A row for each algorithm: what ships on both sides, and the best that PyTorch reaches."""
    lines = [
        "| algorithm | GFLOP per update | PyTorch eager | PyTorch's best rung | JAX scan | share of matmul peak "
        "| over eager | over PyTorch's best |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in summary["algorithms"].items():
        rates = {rung: best(found, rung) for rung in found["rungs"]}
        ours, share = rates[SHIPPED], found["rungs"][SHIPPED]["share_of_matmul_peak"]
        champion, over_champion = "not measured", "not measured"
        if further := [rung for rung in rates if rung.startswith("PyTorch") and rung != EAGER]:
            rung = max([EAGER, *further], key=rates.__getitem__)
            champion = f"{rates[rung]:.1f} ({rung.removeprefix('PyTorch').strip(', ')})"
            over_champion = f"{ours / rates[rung]:.2f}"
        lines.append(
            f"| {name} | {found['gflop_per_update']:.2f} | {rates[EAGER]:.1f} | {champion} | {ours:.1f} | {share:.0%} "
            f"| **{ours / rates[EAGER]:.2f}** | {over_champion} |"
        )
    return "\n".join(lines)


def results_file(kind: str, machine: dict[str, Any]) -> Path:
    """Where this machine's results of a kind are kept."""
    name = f"{kind}-{(machine['gpus'] or [machine['cpu']])[0]}-{machine['cores']}-cores"
    return FOLDER / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def write(kind: str, module: str, measured: Mapping[str, Any]) -> None:
    """Writes what a module of ours measured, with date, command line and hardware; prints which file it is in.

    Args:
        kind: What the file's name begins with; a file of the same kind and machine is replaced.
        module: Such as `seeds`, which was called as `python -m benchmarks.seeds`.
        measured: What JSON can hold.
    """
    command = shlex.join(["python", "-m", f"benchmarks.{module}", *sys.argv[1:]])
    date = datetime.now(UTC).date().isoformat()
    path = _written(kind, {"date": date, "command": command, "hardware": hardware(), **measured})
    print(path.relative_to(ROOT))


def _written(kind: str, summary: dict[str, Any]) -> Path:
    path = results_file(kind, summary["hardware"])
    write_atomically(path, (json.dumps(summary, indent=2, default=float) + "\n").encode())
    return path


def numerics() -> dict[str, Any]:
    """How this process, and those that it starts, multiply: precision, PyTorch's threads, and what XLA was told.

    XLA uses every core if it was not told otherwise.
    """
    products = {
        "torch": torch.get_float32_matmul_precision(),
        "jax": str(jax.default_matmul_precision.value or "default"),
    }
    return {
        "precision": {"dtype": "float32", **products},
        "torch_threads": torch.get_num_threads(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
