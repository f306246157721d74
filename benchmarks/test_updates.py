"""Updates per second of the default code in both frameworks, without compile time; with `--all-rungs`, of all rungs.

The rungs take turns block by block, so that a machine that slows down slows all of them.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.blocks import Processes, prepare, timed_block
from benchmarks.progress import Case, Progress
from benchmarks.results import DISTURBED, Results, updates_per_second
from benchmarks.work import gflop_per_update


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """The processes of the algorithms, which end after the last test."""
    with closing(Processes()) as processes:
        yield processes


def test_updates(
    case: Case, benchmark: BenchmarkFixture, processes: Processes, results: Results, progress: Progress
) -> None:
    """Times one block of one rung."""
    name, rung = case.name, case.rung
    benchmark.group = name
    progress.begin(case)
    peak = processes.run(prepare, name, rung)
    if name not in results.gflop:
        results.gflop[name] = processes.run(gflop_per_update, name)
    block = benchmark.pedantic(processes.run, args=(timed_block, name, rung), rounds=1, iterations=1)
    progress.end(case, block.seconds, updates_per_second(name, rung, block), block.others >= DISTURBED)
    if benchmark.enabled:
        results.peak = max(results.peak, peak)
        results.add(name, rung, block)
