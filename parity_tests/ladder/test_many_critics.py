"""SAC-N's 500 critics on Hopper fit into memory and learn, in both twins."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
# The program's own peak: `resource` would include the peak of the process that started it.
UPDATE = """
from pathlib import Path

from benchmarks.{framework}_rungs import {rung}
from benchmarks.subjects import Subject

{rung}(Subject("sac_n", 1, {{"n_critics": 500, "device": "cpu"}}))()
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 2**20)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a program's own peak")
@pytest.mark.parametrize(("framework", "rung"), [("torch", "eager"), ("jax", "scan")])
def test_five_hundred_critics_fit(framework: str, rung: str) -> None:
    """An update at full width and batch size, in a separate process, stays below 8 GiB."""
    script = UPDATE.format(framework=framework, rung=rung)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 8.0
