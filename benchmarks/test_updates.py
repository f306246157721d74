"""Updates per second on every rung of both ladders, compile time apart.

The rungs take turns block by block, so that a machine that slows down slows all of them.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.blocks import Processes, prepare, timed_block
from benchmarks.results import BLOCKS, Results
from benchmarks.rungs import rungs_of
from benchmarks.subjects import UPDATES, subject
from benchmarks.work import gflop_per_update

CASES = [
    pytest.param(name, rung, id=f"{name}-block {block}-{rung}")
    for name in UPDATES
    for block in range(BLOCKS)
    for rung in rungs_of(subject(name))
]


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """Ended with the last test."""
    with closing(Processes()) as processes:
        yield processes


@pytest.mark.parametrize(("name", "rung"), CASES)
def test_updates(name: str, rung: str, benchmark: BenchmarkFixture, processes: Processes, results: Results) -> None:
    """One block of one rung."""
    benchmark.group = name
    peak = processes.run(prepare, name, rung)
    if name not in results.gflop:
        results.gflop[name] = processes.run(gflop_per_update, name)
    block = benchmark.pedantic(processes.run, args=(timed_block, name, rung), rounds=1, iterations=1)
    if benchmark.enabled:
        results.peak = max(results.peak, peak)
        results.add(name, rung, block)
