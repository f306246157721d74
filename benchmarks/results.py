"""Results files: what was measured, on what, and how."""

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
# Of each rung where every rung is timed, and where what ships is timed alone
BLOCKS, SHIPPED_BLOCKS = 5, 3

# Of a machine's processor time, what others may take before a block no longer counts
DISTURBED = 0.05


class Block(NamedTuple):
    """How long a block took, and the share of the machine that other jobs had meanwhile."""

    seconds: float
    others: float


class Climb(NamedTuple):
    """Which rungs are timed, how often, and where their results go: to a file of their own, which replaces no other.

    The file takes each algorithm by itself, so a part of all may be timed. The others' rows stay as they are.
    """

    # What the results file's name begins with
    kind: str
    blocks: int
    # An algorithm's rungs, by its name
    rungs: Callable[[str], list[str]]


WHAT_SHIPS = Climb("shipped", SHIPPED_BLOCKS, lambda name: [EAGER, SHIPPED])
WHOLE_LADDER = Climb("updates", BLOCKS, lambda name: rungs_of(subject(name)))


class Results:
    """Blocks by algorithm and rung, and what they mean."""

    def __init__(self, command: str, climb: Climb) -> None:
        self.command = command
        self.climb = climb
        self.blocks: dict[str, dict[str, list[Block]]] = defaultdict(lambda: defaultdict(list))
        self.gflop: dict[str, float] = {}
        self.peak = 0.0
        self.load_before = load()

    def add(self, name: str, rung: str, block: Block) -> None:
        """One block."""
        self.blocks[name][rung].append(block)

    def complete(self, names: Collection[str]) -> bool:
        """Whether each rung of each of these algorithms has all its blocks."""
        rungs = [(name, rung) for name in names for rung in self.climb.rungs(name)]
        return all(len(self.blocks.get(name, {}).get(rung, [])) >= self.climb.blocks for name, rung in rungs)

    def rates(self, name: str, rung: str) -> np.ndarray:
        """Updates per second of each block that no other job disturbed; of all of them if there is none such."""
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
        """Writes each algorithm that has all its blocks into the file of this machine; None if none has."""
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
    """A block's rate; seeds at once count together."""
    return RUNGS[rung].updates(subject(name)) / block.seconds


def best(found: dict[str, Any], rung: str) -> float:
    """The best block of a rung, in updates per second: other jobs only ever slow one down."""
    return found["rungs"][rung]["updates_per_second"]["max"]


def as_rate(value: float) -> str:
    """Updates per second in print; a rate below 1 with two more digits."""
    return f"{value:.1f}" if value >= 1.0 else f"{value:.3f}"


def table(summary: dict[str, Any]) -> str:
    """A results file as a Markdown table, a row for each rung."""
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
    """The best rates of both frameworks, in updates per second; None where a file has no such rung.

    Attributes:
        eager: PyTorch's, called plainly.
        champion: PyTorch's best rung.
        fastest: What that reaches.
        ours: The JAX scan.
        over: How often as many the scan makes; None on a GPU without a CUDA graph, where PyTorch's best is not known.
    """

    eager: float | None
    champion: str | None
    fastest: float | None
    ours: float
    over: float | None


def sides(summary: dict[str, Any], name: str) -> Sides:
    """Of one algorithm in a results file."""
    found = summary["algorithms"][name]
    rates = {rung: best(found, rung) for rung in found["rungs"]}
    theirs = {rung: rate for rung, rate in rates.items() if rung.startswith("PyTorch")}
    champion = max(theirs, key=theirs.__getitem__, default=None)
    fastest = theirs[champion] if champion else None
    known = fastest and (not summary["hardware"]["gpus"] or any("CUDA graph" in rung for rung in theirs))
    over = rates[SHIPPED] / fastest if fastest and known else None
    return Sides(rates.get(EAGER), champion, fastest, rates[SHIPPED], over)


def in_print(over: float | None) -> str:
    """The ratio over PyTorch's best."""
    return "no graph" if over is None else f"**{over:.2f}**"


def short_table(summary: dict[str, Any]) -> str:
    """A row for each algorithm: what ships on both sides, and the best that PyTorch reaches.

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
    """A row for each algorithm that all of these machines have timed: what ships, and PyTorch's best."""
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
    """Where this machine's results of a kind are kept."""
    name = f"{kind}-{(machine['gpus'] or [machine['cpu']])[0]}-{machine['cores']}-cores"
    return FOLDER / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def write_rows(kind: str, summary: Mapping[str, Any]) -> Path:
    """Writes a summary's algorithms into the file of its machine, where others' rows stay as they are."""
    path = results_file(kind, summary["hardware"])
    before = json.loads(path.read_text())["algorithms"] if path.exists() else {}
    return _written(kind, {**summary, "algorithms": dict(sorted((before | summary["algorithms"]).items()))})


def called(module: str) -> dict[str, str]:
    """When a module of ours measures, and by what command line, without the folder of this machine that keeps its runs.

    Args:
        module: Such as `seeds`, which was called as `python -m benchmarks.seeds`.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--kept")
    _, flags = parser.parse_known_args()
    command = shlex.join(["python", "-m", f"benchmarks.{module}", *flags])
    return {"date": datetime.now(UTC).date().isoformat(), "command": command}


def write(kind: str, module: str, measured: Mapping[str, Any]) -> None:
    """Writes what a module of ours measured, with date, command line and hardware; prints which file it is in.

    Args:
        kind: What the file's name begins with; a file of the same kind and machine is replaced.
        module: As `called` takes it.
        measured: What JSON can hold.
    """
    path = _written(kind, {**called(module), "hardware": hardware(), **measured})
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
