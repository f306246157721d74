"""Updates per second on every rung of both ladders, compile time apart.

The rungs take turns block by block, so that a machine that slows down slows all of them.
"""

from functools import cache
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.results import BLOCKS, Results
from benchmarks.rungs import RUNGS, rungs_of
from benchmarks.subjects import UPDATES, subject
from benchmarks.work import gflop_per_update, matmul_peak
from shared.machine import OtherJobs

CASES = [
    pytest.param(name, rung, id=f"{name}-block {block}-{rung}")
    for name in UPDATES
    for block in range(BLOCKS)
    for rung in rungs_of(subject(name))
]


@cache
def warm_block(name: str, rung: str) -> Any:
    """A rung's block, compiled and run once."""
    block = RUNGS[rung].block(subject(name))
    block()
    return block


@pytest.mark.parametrize(("name", "rung"), CASES)
def test_updates(name: str, rung: str, benchmark: BenchmarkFixture, results: Results) -> None:
    """One block of one rung."""
    benchmark.group = name
    block = warm_block(name, rung)
    results.gflop.setdefault(name, gflop_per_update(name))
    results.peak = max(results.peak, matmul_peak())
    others = OtherJobs()
    benchmark.pedantic(block, rounds=1, iterations=1)
    if benchmark.enabled:
        results.add(name, rung, benchmark.stats.stats.min, others.share())
