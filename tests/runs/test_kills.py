"""A training process that is killed at random moments, even during saves, and always resumed, ends with the same bits.

The run has an offline and an online phase, with half of the kills in each.

`KILLS` is the number of kills for each framework. Continuous integration makes a few; `KILLS=20 pytest
tests/runs/test_kills.py` makes more.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.runs.stopped_runs import assert_same_bits, only_run, rows

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("KILLS", "4"))
INTERVALS = 3 * KILLS + 10
EVERY = 10
OFFLINE = 3 * KILLS // 2
PHASES = {"offline_iterations": OFFLINE * EVERY, "online_iterations": (INTERVALS - OFFLINE) * EVERY}
SETTINGS = PHASES | {"eval_freq": EVERY, "n_episodes": 1, "batch_size": 32, "device": "cpu"}


Start = Callable[[Path], subprocess.Popen]


@pytest.fixture(params=["torch", "jax"])
def side(request: pytest.FixtureRequest) -> str:
    """The framework."""
    return request.param


@pytest.fixture
def start(side: str) -> Iterator[Start]:
    """Starts the same command each time, like a job scheduler that restarts a job; leaves no process running."""
    command = [sys.executable, str(ROOT / f"corl_{side}" / "finetune" / "iql.py"), "--resume", "auto"]
    command += [f"--{name}={value}" for name, value in SETTINGS.items()]
    started = []

    def start(folder: Path) -> subprocess.Popen:
        full = [*command, "--runs_path", str(folder)]
        process = subprocess.Popen(full, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen, happened: Callable[[], bool], seconds: float) -> None:
    """Polls until it has happened, while the process is alive."""
    end = time.monotonic() + 240
    while not happened():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(seconds)


def step(folder: Path) -> int:
    """The last step in the metrics of the folder's only run."""
    lines = [path.read_text().splitlines(keepends=True) for path in folder.glob("*/metrics.jsonl")]
    whole = [line for line in (lines or [[]])[0] if line.endswith("\n")]
    return int(whole[-1].split(",")[0].split(":")[1]) if whole else 0


def test_killed_again_and_again(start: Start, tmp_path: Path) -> None:
    """Half of the kills come at a random moment, half while a file is being written."""
    assert start(tmp_path / "whole").wait(timeout=240) == 0
    whole = only_run(tmp_path / "whole")
    rng, folder, in_a_save = random.Random(0), tmp_path / "killed", 0
    for kill in range(KILLS):
        process, goal = start(folder), EVERY * (3 * kill + rng.randint(1, 2))
        wait_for(process, lambda goal=goal: step(folder) >= goal, 0.005)
        if kill % 2:
            wait_for(process, lambda: any(folder.glob("*/checkpoints/*.partial")), 0.0002)
        else:
            time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.wait()
        assert process.returncode == -9, "the run had ended: too few intervals"
        in_a_save += any(folder.glob("*/checkpoints/*.partial"))
    last = start(folder)
    assert last.wait(timeout=240) == 0, last.stderr.read()
    run = only_run(folder)
    assert in_a_save >= KILLS // 4, "hardly any kill came while a file was being written"
    steps = [row["step"] for row in rows(run)]
    assert steps == [row["step"] for row in rows(whole)]
    # Episodes that end in the online phase have their own rows.
    assert all(steps.count(EVERY * interval) >= 2 for interval in range(1, INTERVALS + 1))
    assert_same_bits(run, whole)
