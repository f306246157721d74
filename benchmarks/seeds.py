"""`python -m benchmarks.seeds td3_bc`: default runs of both twins over several seeds, and whether they end alike.

These are whole runs in separate processes, from start to final score. A run's figure is the mean of its last three
evaluations. The two frameworks count as equal if their means are within one pooled standard deviation of each other.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import ROOT, write
from benchmarks.subjects import UPDATES
from parity_tests.pairs import PAIRS
from shared.commands import statistics
from shared.commands.reporting.evaluations import read_run
from shared.commands.sweeping.processes import paths
from shared.frameworks.twins import FRAMEWORKS
from shared.runs.configs import dataset_row
from shared.runs.machine import load, on_threads

# The last scores of a run before it continues in the environment, and at its end
AROUND = ("before_online", "after_online")
# The number of seeds from which on a comparison of both frameworks is shown on the front page
MANY = 5


def whole_run(
    framework: str, name: str, settings: Sequence[str], environment: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    """Makes one run in a separate process; returns its `result.json`, with the evaluations by step under `curve`.

    Args:
        framework: `torch` or `jax`.
        name: The algorithm's name.
        settings: The run's flags.
        environment: Further environment variables for its process.
        folder: The folder for the run. A run that has already ended there is not repeated.

    Raises:
        subprocess.CalledProcessError: The run failed.
    """
    if (ended := _ended(folder, name)) is None:
        shutil.rmtree(folder, ignore_errors=True)
        script = [sys.executable, f"corl_{framework}/{name}.py", "--runs_path", str(folder), *settings]
        # This checkout's packages, even if others are installed
        variables = os.environ | {"PYTHONPATH": paths(), **environment}
        subprocess.run(script, cwd=ROOT, env=variables, check=True, stdout=subprocess.DEVNULL)
        ended = _ended(folder, name)
    assert ended is not None, "a run that ended has a result"
    evaluated = read_run(ended)
    assert evaluated is not None, "a run that ended was evaluated"
    result = json.loads((ended / "result.json").read_text())
    return result | {"curve": evaluated.values, "switch": evaluated.switch}


def _ended(folder: Path, name: str) -> Path | None:
    """The algorithm's finished run in a folder. A model-based run has its model's run next to it."""
    results = (path for path in folder.glob("*/result.json") if json.loads(path.read_text())["algorithm"] == name)
    return next((path.parent for path in results), None)


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarises one framework's runs, which were evaluated after the same updates."""
    assert len({tuple(run["curve"]) for run in runs}) == 1, "runs that were not evaluated after the same updates"
    scores = np.array([run["mean_of_last_3"] for run in runs])
    return {
        "seeds": [run["seed"] for run in runs],
        "mean_of_last_3": scores.tolist(),
        "mean": float(scores.mean()),
        "std": float(scores.std(ddof=1)),
        "seconds_total": [run["seconds"]["total"] for run in runs],
        "seconds_to_first_update": [run["seconds"]["to_first_update"] for run in runs],
        "updates": runs[0]["updates"],
        "switch": runs[0]["switch"],
        "steps": list(runs[0]["curve"]),
        "curves": [list(run["curve"].values()) for run in runs],
        **{when: [run[when] for run in runs] for when in AROUND if when in runs[0]},
    }


def is_default(summary: dict[str, Any]) -> bool:
    """Whether the runs used the dataset and the number of updates that a run without arguments has today."""
    name = summary["algorithm"]
    config_class = PAIRS[name].torch.TrainConfig
    dataset = config_class().env
    config = config_class(**dataset_row(config_class, name, dataset))
    run = summary["dataset"]["name"], summary["frameworks"]["torch"]["updates"]
    return run == (dataset, config.max_timesteps)


def data(summary: dict[str, Any]) -> str:
    """The dataset's name in a table of default runs, which all use bundled datasets."""
    return summary["dataset"]["name"].removeprefix("mini/")


def kept_as(name: str, updates: int, settings: Sequence[str]) -> str:
    """The beginning of the results file's name: runs with other settings are not default runs."""
    return f"forms-{name}-{' '.join(settings)}" if settings else f"seeds-{name}-{updates}-updates"


def over_the_data(summary: dict[str, Any], *frameworks: str) -> str:
    """The distance of the frameworks' lowest score above the data's weakest policy, as a table shows it."""
    policies = summary["data_policies"].values()
    lowest = min(min(summary["frameworks"][framework]["mean_of_last_3"]) for framework in frameworks)
    return f"{lowest - min(policies):+.1f}" if policies else "no data"


def later_scores(found: dict[str, Any]) -> list[float]:
    """All evaluations of one framework's runs after their first third; empty if a results file kept none."""
    later = [step > found["updates"] / 3 for step in found.get("steps", [])]
    return [score for curve in found.get("curves", []) for score, kept in zip(curve, later, strict=True) if kept]


def lowest_later(found: dict[str, Any]) -> str:
    """The lowest of the later evaluations, as a table shows it."""
    return f"{min(scores):.1f}" if (scores := later_scores(found)) else "not kept"


def equivalence(summary: dict[str, Any]) -> str:
    """Whether the runs show that both frameworks have the same mean score, within the usual margin."""
    torch, jax = (summary["frameworks"][framework]["mean_of_last_3"] for framework in FRAMEWORKS)
    return statistics.equivalence(jax, torch, statistics.MARGIN)


def table(summary: dict[str, Any]) -> str:
    """Formats the results as a Markdown table."""
    lines = [
        "| framework | score of each seed | mean | std | lowest over the data's weakest policy "
        "| lowest evaluation after a third | minutes a run |",
        "|---|---|---|---|---|---|---|",
    ]
    for framework in FRAMEWORKS:
        found = summary["frameworks"][framework]
        scores = ", ".join(f"{score:.1f}" for score in found["mean_of_last_3"])
        lines.append(
            f"| {framework} | {scores} | {found['mean']:.1f} | {found['std']:.1f} "
            f"| {over_the_data(summary, framework)} | {lowest_later(found)} "
            f"| {np.mean(found['seconds_total']) / 60:.1f} |"
        )
    return "\n".join(lines)


def gains(summaries: Sequence[dict[str, Any]]) -> str:
    """Formats each seed's gain from the online phase as Markdown, for summaries that have one."""
    lines = [
        "| algorithm | framework | score before and after, each seed | mean gain | seeds that gain | minutes a run |",
        "|---|---|---|---|---|---|",
    ]
    for summary in summaries:
        for framework in FRAMEWORKS:
            found = summary["frameworks"][framework]
            if AROUND[0] not in found:
                continue
            before, after = (found[when] for when in AROUND)
            scores = ", ".join(f"{a:.1f} to {b:.1f}" for a, b in zip(before, after, strict=True))
            gained = np.subtract(after, before)
            lines.append(
                f"| {PAIRS[summary['algorithm']].title} | {framework} | {scores} | {gained.mean():+.1f} "
                f"| {(gained > 0).sum()} of {len(gained)} | {np.mean(found['seconds_total']) / 60:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Runs, prints the table and writes `benchmarks/results/seeds-<algorithm>-<updates>-<machine>.json`.

    Runs with other settings are not default runs, and write `forms-<algorithm>-<settings>-<machine>.json`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Further flags are the runs' own: --max_timesteps 10000, say."
    )
    parser.add_argument("algorithm", choices=UPDATES)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0, at least 2 (default: 5)")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, sharing the cores (default: 1)")
    parser.add_argument("--kept", type=Path, metavar="FOLDER", help="keeps runs; another call makes only those missing")
    args, settings = parser.parse_known_args()
    if args.seeds < 2:
        parser.error("one seed has no deviation to compare by: ask for --seeds 2 or more")
    threads = max(1, (os.cpu_count() or 1) // args.jobs)
    cases = [(framework, str(seed)) for seed in range(args.seeds) for framework in FRAMEWORKS]
    before = load()

    def run(case: tuple[str, str], folder: Path) -> dict[str, Any]:
        framework, seed = case
        flags = ["--seed", seed, *settings]
        place = folder / " ".join([args.algorithm, framework, *flags]).replace("/", "-")
        return whole_run(framework, args.algorithm, flags, on_threads(threads), place)

    try:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
            runs = list(pool.map(partial(run, folder=(args.kept or Path(folder)).resolve()), cases))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # the run itself has said why
    by_framework = {
        framework: summarise([run for run in runs if run["framework"] == framework]) for framework in FRAMEWORKS
    }
    updates = runs[0]["updates"]
    pooled = float(np.sqrt(np.mean([found["std"] ** 2 for found in by_framework.values()])))
    apart = abs(by_framework["torch"]["mean"] - by_framework["jax"]["mean"])
    measured = {
        "algorithm": args.algorithm,
        "settings": settings,
        "load_before": before,
        "threads_per_run": threads,
        "versions": {run["framework"]: run["versions"] for run in runs},
        "dataset": runs[0]["dataset"],
        "evaluation": runs[0]["evaluation"],
        "data_policies": runs[0]["data_policies"],
        "metric": f"{runs[0]['metric']}, mean of the last three evaluations",
        "frameworks": by_framework,
        "pooled_std": pooled,
        "means_apart": apart,
        "within_one_pooled_std": apart <= pooled,
    }
    print(table(measured))
    if PAIRS[args.algorithm].explores:
        print(gains([measured]))
    print(f"means {apart:.1f} apart, pooled standard deviation {pooled:.1f}")
    write(kept_as(args.algorithm, updates, settings), "seeds", measured)


if __name__ == "__main__":
    main()
