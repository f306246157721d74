"""`python -m benchmarks.whole_runs td3_bc`: runs from the start of their process to the final score.

CORL's protocol, shortened: an evaluation of ten episodes every 5,000 updates, with the default dataset's row.
Compilation counts: JAX runs twice, with an empty and with a filled cache, as a first and a later start.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.results import numerics, write
from benchmarks.seeds import whole_run
from benchmarks.subjects import UPDATES
from shared.runs.machine import load

PROTOCOL = ["--eval_freq", "5000", "--n_episodes", "10"]
COLD, WARM = "JAX, first start", "JAX, later start"
CASES = {"PyTorch": "torch", COLD: "jax", WARM: "jax"}


def timed(framework: str, name: str, cache: Path, settings: list[str]) -> dict[str, Any]:
    """Times one run on all cores; returns its versions, score and times in seconds.

    Raises:
        subprocess.CalledProcessError: The run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        found = whole_run(framework, name, settings, {"JAX_COMPILATION_CACHE_DIR": str(cache)}, Path(folder))
        wall = time.perf_counter() - begin
    times = {key: found["seconds"][key] for key in ("to_first_update", "training", "evaluating")}
    return {
        "seconds": {"process": wall, **times},
        **{key: found[key] for key in ("updates", "final", "metric", "versions")},
    }


def table(summary: dict[str, Any]) -> str:
    """Formats a results file as a Markdown table."""
    lines = [
        "| algorithm | updates | run | s to the first update | s training | s evaluating | share of evaluation "
        "| s in all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, cases in summary["algorithms"].items():
        for case, found in cases.items():
            times = found["seconds"]
            lines.append(
                f"| {name} | {found['updates']} | {case} | {times['to_first_update']:.1f} | {times['training']:.1f} "
                f"| {times['evaluating']:.1f} | {times['evaluating'] / times['process']:.0%} | {times['process']:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Runs, prints the table and writes `benchmarks/results/runs-<machine>.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithms", nargs="+", choices=UPDATES, metavar="ALGORITHM")
    parser.add_argument("--updates", type=int, help="updates in a run (default: as many as the default run has)")
    args = parser.parse_args()
    settings = PROTOCOL + (["--max_timesteps", str(args.updates)] if args.updates else [])
    before, found = load(), {}
    try:
        for name in args.algorithms:
            with tempfile.TemporaryDirectory() as cache:
                cases = {case: timed(side, name, Path(cache), settings) for case, side in CASES.items()}
            found[name] = cases
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # the run itself has said why
    measured = {"load_before": before, **numerics(), "settings": settings, "algorithms": found}
    print(table(measured))
    write("runs", "whole_runs", measured)


if __name__ == "__main__":
    main()
