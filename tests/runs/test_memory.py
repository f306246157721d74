"""A run's memory does not grow with its updates."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
UPDATES, INTERVAL = 50_000, 1_000
# Over the last 40 intervals: the learning curve, drawn every ten seconds, takes 3 MB once, and settles. One train state
# of 0.8 MB kept at each interval would be 34.
BOUND = 12 * 2**20
# Memory that one thread has given back serves the others, too. With an arena a thread, drawings settle only after
# minutes. Large pieces go back to the system at once: what stays is then in use, and no gap in the heap.
HEAP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def test_memory_stays_flat_over_fifty_thousand_updates(tmp_path: Path) -> None:
    """Compiled programs, states, histories, curves and checkpoints are let go of.

    The run has a process of its own: a process that has run other tests frees and takes memory for them, too.
    """
    settings = {"max_timesteps": UPDATES, "eval_freq": INTERVAL, "n_episodes": 1, "batch_size": 8}
    command = [sys.executable, "corl_jax/any_percent_bc.py", "--runs_path", str(tmp_path)]
    command += [f"--{name}={value}" for name, value in settings.items()]
    resident = []
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | HEAP, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("update "):
                resident.append(psutil.Process(process.pid).memory_info().rss)
    assert process.returncode == 0
    assert len(resident) == UPDATES // INTERVAL
    assert resident[-1] - resident[9] < BOUND, resident
