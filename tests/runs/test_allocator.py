"""Memory that was freed is used again, by a count of page faults, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Large blocks, taken and freed by a thread, as XLA does
BLOCKS = """
import resource, threading
import numpy as np
{before}
def work():
    for _ in range(2):
        np.ones(64 << 20, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.ones(64 << 20, np.uint8)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
# What a twin's file imports first, and what its online phase begins with
START = "import shared.runs.start"
KEEP = "from shared.runs.allocator import keep_freed_memory; keep_freed_memory()"


def faults(*before: str) -> int:
    """Of ten blocks of 64 MiB, after two that were there before."""
    script = BLOCKS.format(before="\n".join(before))
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_large_blocks_are_used_again() -> None:
    """Each of the two steps is needed."""
    assert faults(START, KEEP) < 50
    assert all(faults(*some) > 300 for some in ([], [START], [KEEP]))
