"""Updates per second of each twin, compile time apart.

The sides take turns block by block, so that a machine that slows down slows both.
"""

from functools import cache
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.results import BLOCKS, Results
from benchmarks.sides import SIDES, UPDATES
from benchmarks.work import gflop_per_update, matmul_peak

CASES = [
    pytest.param(name, side, id=f"{name}-block {block}-{side}")
    for name in UPDATES
    for block in range(BLOCKS)
    for side in SIDES
]


@cache
def warm_side(name: str, side: str) -> Any:
    """A side's block, compiled and run once."""
    block = SIDES[side](name)
    block()
    return block


@pytest.mark.parametrize(("name", "side"), CASES)
def test_updates(name: str, side: str, benchmark: BenchmarkFixture, results: Results) -> None:
    """One block of one side."""
    benchmark.group = name
    block = warm_side(name, side)
    results.gflop.setdefault(name, gflop_per_update(name))
    results.peak = max(results.peak, matmul_peak())
    benchmark.pedantic(block, rounds=1, iterations=1)
    if benchmark.enabled:
        results.add(name, side, benchmark.stats.stats.min)
