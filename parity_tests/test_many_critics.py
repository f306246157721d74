"""SAC-N's 500 critics on Hopper fit into memory and learn, in both twins."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UPDATE = """
import resource

from benchmarks.{framework}_rungs import {rung}
from benchmarks.subjects import Subject

{rung}(Subject("sac_n", 1, {{"num_critics": 500, "device": "cpu"}}))()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.parametrize(("framework", "rung"), [("torch", "eager"), ("jax", "scan")])
def test_five_hundred_critics_fit(framework: str, rung: str) -> None:
    """An update at full width and batch, in a process of its own, stays below 8 GiB."""
    script = UPDATE.format(framework=framework, rung=rung)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 8.0
