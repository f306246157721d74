"""Updates per second on every rung of both ladders, compile time apart.

The rungs take turns block by block, so that a machine that slows down slows all of them. Each algorithm has a process
of its own: in one that has run others before, a scan can lose a quarter of its speed (EDAC's does on a CPU).
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import cache
from multiprocessing import get_context
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.results import BLOCKS, Block, Results
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
def warm_block(name: str, rung: str) -> Callable[[], Any]:
    """A rung's block, compiled and run once."""
    block = RUNGS[rung].block(subject(name))
    block()
    return block


def prepare(name: str, rung: str) -> float:
    """Makes a block ready, and returns the matmul peak in GFLOP/s as it is just before it runs."""
    warm_block(name, rung)
    return matmul_peak()


def timed_block(name: str, rung: str) -> Block:
    """One block of one rung."""
    others, begin = OtherJobs(), time.perf_counter()
    warm_block(name, rung)()
    return Block(time.perf_counter() - begin, others.share())


class Processes:
    """One at a time, for the algorithm whose turn it is."""

    def __init__(self) -> None:
        self._name, self._process = "", None

    def run(self, function: Callable[..., Any], name: str, *arguments: Any) -> Any:
        """What the function returns for an algorithm and further arguments, called in that algorithm's process."""
        if name != self._name:
            self.close()
            self._name, self._process = name, ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return self._process.submit(function, name, *arguments).result()

    def close(self) -> None:
        """Ends the process, and with it what it had in memory."""
        if self._process:
            self._process.shutdown()


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
