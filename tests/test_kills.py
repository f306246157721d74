"""A training process killed at random moments, saves included, and resumed each time, ends with the same bits.

`KILLS` kills for each framework; the continuous integration makes a few, `KILLS=20 pytest tests/test_kills.py` more.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stopped_runs import assert_same_bits, only_run, rows

ROOT = Path(__file__).resolve().parent.parent
KILLS = int(os.environ.get("KILLS", "4"))
INTERVALS = 3 * KILLS + 10
EVERY = 10
FLAGS = ["--max_timesteps", str(INTERVALS * EVERY), "--eval_freq", str(EVERY), "--n_episodes", "1"]
FLAGS += ["--batch_size", "32", "--device", "cpu", "--resume", "auto"]


def start(side: str, folder: Path) -> subprocess.Popen:
    """The same command each time, as in a script of a job scheduler that starts a job again."""
    command = [sys.executable, str(ROOT / f"corl_{side}" / "td3_bc.py"), *FLAGS, "--runs_path", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def wait_for(process: subprocess.Popen, happened: Callable[[], bool], seconds: float) -> None:
    """Until it has, while the process lives, asking every so many seconds."""
    end = time.monotonic() + 240
    while not happened():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(seconds)


def step(folder: Path) -> int:
    """The last number in the metrics of the one run there."""
    lines = [path.read_text().splitlines(keepends=True) for path in folder.glob("*/metrics.jsonl")]
    whole = [line for line in (lines or [[]])[0] if line.endswith("\n")]
    return int(whole[-1].split(",")[0].split(":")[1]) if whole else 0


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_killed_again_and_again(side: str, tmp_path: Path) -> None:
    """Half of the kills come at a random moment, half while a file is being written."""
    whole = start(side, tmp_path / "whole")
    assert whole.wait(timeout=240) == 0, whole.stderr.read()
    rng, folder, in_a_save = random.Random(side), tmp_path / "killed", 0
    for kill in range(KILLS):
        process, goal = start(side, folder), EVERY * (3 * kill + rng.randint(1, 2))
        wait_for(process, lambda goal=goal: step(folder) >= goal, 0.005)
        if kill % 2:
            wait_for(process, lambda: any(folder.glob("*/checkpoints/*.partial")), 0.0002)
        else:
            time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.wait()
        assert process.returncode == -9, "the run had ended: too few intervals"
        in_a_save += any(folder.glob("*/checkpoints/*.partial"))
    last = start(side, folder)
    assert last.wait(timeout=240) == 0, last.stderr.read()
    run = only_run(folder)
    assert in_a_save >= KILLS // 4, "hardly any kill came while a file was being written"
    steps = [row["step"] for row in rows(run)]
    assert steps == [EVERY * interval for interval in range(1, INTERVALS + 1) for _ in ("log", "evaluation")]
    assert_same_bits(run, only_run(tmp_path / "whole"))
