"""Memory that compiled calls request again and again, measured in page faults."""

import platform
import resource
import subprocess
import sys

import pytest

SCRATCH = 64 * 2**20  # bytes
# A call with this much scratch memory in a fresh process, and the median of its faults. Pages are small, whatever the
# machine prefers. A call may start before the last one's memory is free, so the heap needs some calls to grow enough.
CALLS = """
import ctypes
import resource
import statistics
import jax
import jax.numpy as jnp
from shared.frameworks.jax_online import Online

PR_SET_THP_DISABLE = 41
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)

@jax.jit
def call(x):
    return (jnp.tanh(x @ x[:2048].T) @ x[:2048]).sum()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call(x).block_until_ready()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

x = jnp.ones((8192, 16))
ONLINE
print(statistics.median(faults() for _ in range(21)))
"""


def faults_of_a_call(online: str) -> float:
    """The page faults of the compiled call."""
    done = subprocess.run([sys.executable, "-c", CALLS.replace("ONLINE", online)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return float(done.stdout)


@pytest.mark.thorough
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's heap has no such options")
def test_scratch_memory_stays_with_the_process() -> None:
    """From the online phase on, a call reuses the pages of the previous one."""
    pages = SCRATCH / resource.getpagesize()
    assert faults_of_a_call("") >= pages
    assert faults_of_a_call("Online(*[None] * 6)") < pages / 100


# Loads every pair, and twins that learn from rows of a ring but never go online
STAYS_OFFLINE = """
import sys
import benchmarks.subjects
import corl_jax.model_based.combo
import corl_jax.model_based.mopo
assert "shared.frameworks.jax_ring" in sys.modules
print("shared.heap" in sys.modules)
"""


@pytest.mark.thorough
def test_who_stays_offline_shares_no_heap() -> None:
    """If threads share a heap, a scan of many updates takes longer."""
    done = subprocess.run([sys.executable, "-c", STAYS_OFFLINE], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
