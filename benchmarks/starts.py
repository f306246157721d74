"""`python -m benchmarks.starts`: seconds to a run's first update, and its memory, by the size of its dataset.

The datasets are HDF5 files in D4RL's layout with made-up rows of Hopper's size. A first start finds no cache of
compiled programs and none of the dataset; a later start finds both.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from benchmarks.memory import watched
from benchmarks.results import ROOT, numerics, write
from shared.runs.machine import load, versions

NAME, ENVIRONMENT, STATE_DIM, ACTION_DIM = "td3_bc", "Hopper-v5", 11, 3
ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
SIDES = ("torch", "jax")
STARTS = ("first", "later")
# The number of rows that are made and written at once
_PART = 1_000_000
_SETTINGS = f"--buffer_size {max(ROWS)} --eval_env {ENVIRONMENT} --max_timesteps 1 --eval_freq 1 --n_episodes 1".split()


def write_rows(path: Path, rows: int) -> None:
    """Writes a dataset with this many made-up rows, in trajectories of 1,000."""
    rng = np.random.default_rng(0)
    columns = {"observations": (STATE_DIM,), "actions": (ACTION_DIM,), "rewards": ()}
    with h5py.File(path, "w") as file:
        for name, shape in columns.items():
            column = file.create_dataset(name, (rows, *shape), np.float32)
            for begin in range(0, rows, _PART):
                end = min(begin + _PART, rows)
                column[begin:end] = rng.uniform(-1.0, 1.0, size=(end - begin, *shape))
        file["terminals"] = np.zeros(rows, bool)
        file["timeouts"] = np.arange(1, rows + 1) % 1000 == 0


def started(side: str, dataset: Path, cache: Path) -> dict[str, float]:
    """Makes a run with one update: the seconds to it since the process began, and the process's peak memory.

    Raises:
        subprocess.CalledProcessError: The run failed.
    """
    caches = {"XDG_CACHE_HOME": str(cache), "JAX_COMPILATION_CACHE_DIR": str(cache / "jax")}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, f"corl_{side}/{NAME}.py", "--env", str(dataset), "--runs_path", folder, *_SETTINGS]
        gib = watched(command, ROOT, os.environ | caches)
        (path,) = Path(folder).glob("*/result.json")
        seconds = json.loads(path.read_text())["seconds"]["to_first_update"]
    return {"seconds_to_first_update": seconds, "gib": gib}


def measured(rows: int) -> list[dict[str, Any]]:
    """Both frameworks' first and later start on a dataset with this many rows."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        write_rows(dataset := Path(folder) / "made-up.hdf5", rows)
        for side in SIDES:
            for start in STARTS:
                run = started(side, dataset, Path(folder) / side)
                found.append({"rows": rows, "side": side, "start": start, **run})
    return found


def start_of(summary: Mapping[str, Any], rows: int, side: str, start: str) -> Mapping[str, float]:
    """One start in a results file."""
    wanted = {"rows": rows, "side": side, "start": start}
    return next(found for found in summary["starts"] if wanted.items() <= found.items())


def table(summary: Mapping[str, Any]) -> str:
    """Formats a results file as a Markdown table."""
    lines = [
        "| rows | PyTorch, first and later start | JAX, first and later start | GiB, PyTorch and JAX |",
        "|---|---|---|---|",
    ]
    for rows in sorted({found["rows"] for found in summary["starts"]}):
        runs = {side: [start_of(summary, rows, side, start) for start in STARTS] for side in SIDES}
        cells = [", ".join(f"{run['seconds_to_first_update']:.1f} s" for run in runs[side]) for side in SIDES]
        memory = ", ".join(f"{max(run['gib'] for run in runs[side]):.1f}" for side in SIDES)
        lines.append(f"| {rows:,} | {cells[0]} | {cells[1]} | {memory} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the table and writes `benchmarks/results/starts-<machine>.json`."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    before, found = load(), []
    try:
        for rows in tqdm(ROWS, unit="dataset"):
            found += measured(rows)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # the run itself has said why
    summary = {
        "versions": versions("torch", "jax", "jaxlib", "h5py"),
        **numerics(),
        "load_before": before,
        "algorithm": NAME,
        "state_dim": STATE_DIM,
        "action_dim": ACTION_DIM,
        "starts": found,
    }
    print(table(summary))
    write("starts", "starts", summary)


if __name__ == "__main__":
    main()
