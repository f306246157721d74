"""Memory that compiled calls ask for again and again, as a count of page faults."""

import platform
import subprocess
import sys

import pytest

# A call with 64 MB of scratch memory, which is 16,384 pages, in a fresh process; the median of its faults. A call may
# come before the last one's memory is free, so the heap takes some calls to be large enough.
CALLS = """
import resource
import statistics
import jax
import jax.numpy as jnp
import shared.frameworks.jax_online
from shared.heap import keep_freed_memory

@jax.jit
def call(x):
    return (jnp.tanh(x @ x[:2048].T) @ x[:2048]).sum()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call(x).block_until_ready()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

x = jnp.ones((8192, 16))
KEEP
print(statistics.median(faults() for _ in range(21)))
"""


def faults_of_a_call(keep: str) -> float:
    """Page faults of the compiled call."""
    done = subprocess.run([sys.executable, "-c", CALLS.replace("KEEP", keep)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return float(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's heap")
def test_scratch_memory_stays_with_the_process() -> None:
    """From the online phase on, a call meets the pages of the call before."""
    assert faults_of_a_call("") > 10_000
    assert faults_of_a_call("keep_freed_memory()") < 100
