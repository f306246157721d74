"""A run's memory does not grow with its updates."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
UPDATES, INTERVAL = 3_000, 100
# Draws the learning curve after each evaluation, so that slow and fast machines draw equally often.
PROGRAM = """
import runpy
from shared.runs import record

record._SECONDS_BETWEEN_DRAWINGS = 0.0
runpy.run_path("corl_jax/any_percent_bc.py", run_name="__main__")
"""
# Over the last 20 intervals a run grows by up to 3 MB. Keeping a train state of 0.8 MB at each interval would add 17
# MB. Figures that wait for Python's collector amount to 36 MB at times.
BOUND = 8 * 2**20


def test_memory_stays_flat_over_thirty_intervals(tmp_path: Path) -> None:
    """Compiled programs, states, histories, curves and checkpoints are released.

    The run has a process of its own, because one that has run other tests also frees and takes memory for them.
    """
    settings = {"max_timesteps": UPDATES, "eval_freq": INTERVAL, "n_episodes": 1, "batch_size": 8}
    command = [sys.executable, "-c", PROGRAM, "--runs_path", str(tmp_path)]
    command += [f"--{name}={value}" for name, value in settings.items()]
    resident = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("update "):
                resident.append(psutil.Process(process.pid).memory_info().rss)
    assert process.returncode == 0
    assert len(resident) == UPDATES // INTERVAL
    assert max(resident[9:]) - resident[9] < BOUND, [round(size / 2**20, 1) for size in resident]
