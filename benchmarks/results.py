"""Results files: the measurements, with the machine and the method."""

import argparse
import json
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from benchmarks.rungs import EAGER, RUNGS, SHIPPED, rungs_of
from benchmarks.subjects import ACTION_DIM, ROWS, STATE_DIM, subject
from shared.files import write_atomically
from shared.runs.machine import hardware, load, versions

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "results"
# The number of blocks of each rung if every rung is timed, and if only the default code is timed
BLOCKS, SHIPPED_BLOCKS = 5, 3

# The share of a machine's processor time that other jobs may take before a block no longer counts
DISTURBED = 0.05


class Block(NamedTuple):
    """How long a block took, and the share of the machine that other jobs used meanwhile."""

    seconds: float
    others: float


class Climb(NamedTuple):
    """Which rungs are timed, how often, and which results file they go to.

    The file is updated algorithm by algorithm, so some of them may be timed alone. The other rows stay unchanged.
    """

    # The beginning of the results file's name
    kind: str
    blocks: int
    # An algorithm's rungs, by its name
    rungs: Callable[[str], list[str]]


WHAT_SHIPS = Climb("shipped", SHIPPED_BLOCKS, lambda name: [EAGER, SHIPPED])
WHOLE_LADDER = Climb("updates", BLOCKS, lambda name: rungs_of(subject(name)))


class Results:
    """Collects blocks by algorithm and rung, and computes their results."""

    def __init__(self, command: str, climb: Climb) -> None:
        self.command = command
        self.climb = climb
        self.blocks: dict[str, dict[str, list[Block]]] = defaultdict(lambda: defaultdict(list))
        self.gflop: dict[str, float] = {}
        self.peak = 0.0
        self.load_before = load()

    def add(self, name: str, rung: str, block: Block) -> None:
        """Adds one block."""
        self.blocks[name][rung].append(block)

    def complete(self, names: Collection[str]) -> bool:
        """Whether each rung of each of these algorithms has all its blocks."""
        rungs = [(name, rung) for name in names for rung in self.climb.rungs(name)]
        return all(len(self.blocks.get(name, {}).get(rung, [])) >= self.climb.blocks for name, rung in rungs)

    def rates(self, name: str, rung: str) -> np.ndarray:
        """Updates per second of each block that no other job disturbed, or of all blocks if there is none such."""
        blocks = self.blocks[name][rung]
        counted = [block for block in blocks if block.others < DISTURBED] or blocks
        return np.array([updates_per_second(name, rung, block) for block in counted])

    def summary(self) -> dict[str, Any]:
        """The content of the results file: the machine, and each row with its date and command."""
        device = jax.devices()[0]
        measured = {
            "date": datetime.now(UTC).date().isoformat(),
            "command": self.command,
            "load_before": self.load_before,
            "versions": versions("torch", "jax", "jaxlib", "flax", "optax", "numpy"),
            **numerics(),
            "matmul_peak_gflops": self.peak,
        }
        return {
            "hardware": {"device": f"{device.platform} ({device.device_kind})", **hardware()},
            "dataset": {"rows": ROWS, "state_dim": STATE_DIM, "action_dim": ACTION_DIM},
            "algorithms": {name: {**self._algorithm(name), "measured": measured} for name in self.blocks},
        }

    def _algorithm(self, name: str) -> dict[str, Any]:
        return {
            "gflop_per_update": self.gflop[name],
            "rungs": {rung: self._rung(name, rung) for rung in RUNGS if rung in self.blocks[name]},
        }

    def _rung(self, name: str, rung: str) -> dict[str, Any]:
        rates, others = self.rates(name, rung), [share for _, share in self.blocks[name][rung]]
        return {
            "updates_per_block": RUNGS[rung].updates(subject(name)),
            "blocks": len(others),
            "blocks_undisturbed": sum(share < DISTURBED for share in others),
            "share_of_other_jobs": max(others),
            "updates_per_second": spread(rates),
            "share_of_matmul_peak": self.gflop[name] * rates.max() / self.peak,
        }

    def write(self) -> Path | None:
        """Writes each complete algorithm to this machine's file; returns None if there is none."""
        summary = self.summary()
        rows = {name: row for name, row in summary["algorithms"].items() if self.complete([name])}
        if not rows:
            return None
        return write_rows(self.climb.kind, {**summary, "algorithms": rows})

    def table(self) -> str:
        """The results as Markdown."""
        short = self.climb is WHAT_SHIPS and self.complete(self.blocks)
        return shipped_table(self.summary()) if short else table(self.summary())


def spread(rates: np.ndarray) -> dict[str, float]:
    """A summary of the rates (n,) of blocks."""
    return {"min": float(rates.min()), "median": float(np.median(rates)), "max": float(rates.max())}


def updates_per_second(name: str, rung: str, block: Block) -> float:
    """A block's rate, counting all seeds together."""
    return RUNGS[rung].updates(subject(name)) / block.seconds


def best(found: dict[str, Any], rung: str) -> float:
    """The best block of a rung, in updates per second, because other jobs can only slow a block down."""
    return found["rungs"][rung]["updates_per_second"]["max"]


def as_rate(value: float) -> str:
    """Formats updates per second, with two more digits for a rate below 1."""
    return f"{value:.1f}" if value >= 1.0 else f"{value:.3f}"


def table(summary: dict[str, Any]) -> str:
    """Formats a results file as a Markdown table, with a row for each rung."""
    lines = [
        f"| algorithm | variant | updates/s (min, median, best) | share of matmul peak | over {EAGER} |",
        "|---|---|---|---|---|",
    ]
    for name, found in summary["algorithms"].items():
        for rung, values in found["rungs"].items():
            rate = values["updates_per_second"]
            over = f"{rate['max'] / best(found, EAGER):.2f}" if EAGER in found["rungs"] else "not measured"
            lines.append(
                f"| {name} | {rung} | {as_rate(rate['min'])}, {as_rate(rate['median'])}, **{as_rate(rate['max'])}** "
                f"| {values['share_of_matmul_peak']:.0%} | {over} |"
            )
    return "\n".join(lines)


class Sides(NamedTuple):
    """The best rates of both frameworks, in updates per second; None if a file has no such rung.

    Attributes:
        eager: PyTorch eager's rate.
        champion: PyTorch's best rung.
        fastest: The rate of that rung.
        ours: The JAX scan's rate.
        over: The scan's rate over PyTorch's best; None on a GPU without a CUDA graph, where PyTorch's best is unknown.
    """

    eager: float | None
    champion: str | None
    fastest: float | None
    ours: float
    over: float | None


def sides(summary: dict[str, Any], name: str) -> Sides:
    """The best rates of one algorithm in a results file."""
    found = summary["algorithms"][name]
    rates = {rung: best(found, rung) for rung in found["rungs"]}
    theirs = {rung: rate for rung, rate in rates.items() if rung.startswith("PyTorch")}
    champion = max(theirs, key=theirs.__getitem__, default=None)
    fastest = theirs[champion] if champion else None
    known = fastest and (not summary["hardware"]["gpus"] or any("CUDA graph" in rung for rung in theirs))
    over = rates[SHIPPED] / fastest if fastest and known else None
    return Sides(rates.get(EAGER), champion, fastest, rates[SHIPPED], over)


def in_print(over: float | None) -> str:
    """Formats the ratio over PyTorch's best."""
    return "no graph" if over is None else f"**{over:.2f}**"


def short_table(summary: dict[str, Any]) -> str:
    """A row for each algorithm: the default code on both sides, and PyTorch's best rate.

    A file without PyTorch eager's rates has no columns for them.
    """
    has_eager = all(EAGER in found["rungs"] for found in summary["algorithms"].values())
    header = ["algorithm", "GFLOP per update", EAGER, "PyTorch's best", SHIPPED, "share of matmul peak"]
    header += ["over eager", "over PyTorch's best"]
    rows = []
    for name, found in summary["algorithms"].items():
        of, share = sides(summary, name), found["rungs"][SHIPPED]["share_of_matmul_peak"]
        champion = f"{of.fastest:.1f} ({of.champion.removeprefix('PyTorch').strip(', ')})" if of.champion else ""
        eager, over_eager = (f"{of.eager:.1f}", f"{of.ours / of.eager:.2f}") if of.eager else ("", "")
        cells = [name, f"{found['gflop_per_update']:.2f}", eager, champion, f"{of.ours:.1f}", f"{share:.0%}"]
        rows.append([*cells, over_eager, in_print(of.over)])
    kept = [i for i, title in enumerate(header) if has_eager or title not in (EAGER, "over eager")]
    lines = [[row[i] for i in kept] for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def side_by_side(summaries: Sequence[dict[str, Any]]) -> str:
    """A row for each algorithm that all these machines have timed: the default code, and PyTorch's best."""
    header, names = "| algorithm | GFLOP per update |", set.intersection(*(set(of["algorithms"]) for of in summaries))
    for summary in summaries:
        machine = summary["hardware"]
        header += f" {(machine['gpus'] or [machine['cpu']])[0]} | over PyTorch's best |"
    lines = [header, "|---|---|" + "---|---|" * len(summaries)]
    for name in sorted(names):
        cells = [name, f"{summaries[0]['algorithms'][name]['gflop_per_update']:.2f}"]
        for summary in summaries:
            of = sides(summary, name)
            rates = [f"{rate:.1f}" for rate in (of.eager, of.fastest, of.ours) if rate]
            cells += [", ".join(rates), in_print(of.over)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread_in_print(rung: Mapping[str, Any] | None) -> str:
    """The slowest, the median and the best block of a rung; nothing where there is no such rung."""
    if rung is None:
        return ""
    rate = rung["updates_per_second"]
    return f"{as_rate(rate['min'])}, {as_rate(rate['median'])}, **{as_rate(rate['max'])}**"


def shipped_table(summary: dict[str, Any]) -> str:
    """A row for each algorithm of a results file that holds what ships alone."""
    lines = [
        f"| algorithm | {EAGER} (min, median, best) | {SHIPPED} (min, median, best) | share of matmul peak "
        "| over eager | undisturbed blocks | date |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in summary["algorithms"].items():
        # A rate that was found wrong leaves its file until it is measured again.
        eager, scan = found["rungs"].get(EAGER), found["rungs"][SHIPPED]
        over = f"**{best(found, SHIPPED) / best(found, EAGER):.2f}**" if eager else ""
        undisturbed = ", ".join(f"{side['blocks_undisturbed']} of {side['blocks']}" for side in (eager, scan) if side)
        cells = [name, _spread_in_print(eager), _spread_in_print(scan), f"{scan['share_of_matmul_peak']:.0%}", over]
        lines.append(f"| {' | '.join([*cells, undisturbed, found['measured']['date']])} |")
    return "\n".join(lines)


def files(kind: str) -> list[Path]:
    """All results files of a kind, such as `updates`, `runs` or `environments`."""
    return sorted(FOLDER.glob(f"{kind}-*.json"))


def results_file(kind: str, machine: dict[str, Any]) -> Path:
    """The path of this machine's results of a kind."""
    name = f"{kind}-{(machine['gpus'] or [machine['cpu']])[0]}-{machine['cores']}-cores"
    return FOLDER / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def write_rows(kind: str, summary: Mapping[str, Any]) -> Path:
    """Writes a summary's algorithms into its machine's file; the rows of other algorithms stay unchanged."""
    path = results_file(kind, summary["hardware"])
    before = json.loads(path.read_text())["algorithms"] if path.exists() else {}
    return _written(kind, {**summary, "algorithms": dict(sorted((before | summary["algorithms"]).items()))})


def called(module: str) -> dict[str, str]:
    """The date and command line of a benchmark, without the folder on this machine that keeps its runs.

    Args:
        module: The benchmark's name, such as `seeds` for `python -m benchmarks.seeds`.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--kept")
    _, flags = parser.parse_known_args()
    command = shlex.join(["python", "-m", f"benchmarks.{module}", *flags])
    return {"date": datetime.now(UTC).date().isoformat(), "command": command}


def write(kind: str, module: str, measured: Mapping[str, Any]) -> None:
    """Writes a benchmark's results with date, command line and hardware, and prints the file's path.

    Args:
        kind: The beginning of the file's name; a file of the same kind and machine is replaced.
        module: The benchmark's name, as for `called`.
        measured: The results, which JSON must be able to represent.
    """
    path = _written(kind, {**called(module), "hardware": hardware(), **measured})
    print(path.relative_to(ROOT))


def _written(kind: str, summary: dict[str, Any]) -> Path:
    path = results_file(kind, summary["hardware"])
    write_atomically(path, (json.dumps(summary, indent=2, default=float) + "\n").encode())
    return path


def numerics() -> dict[str, Any]:
    """How this process and its children multiply: precision, PyTorch's threads, and XLA's flags.

    XLA uses every core unless its flags say otherwise.
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
