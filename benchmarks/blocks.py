"""Blocks of updates, timed one by one.

Each algorithm has its own process, because in a process that has run others before, a scan can lose a quarter of its
speed (EDAC's does on a CPU).
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

from benchmarks.results import Block
from benchmarks.rungs import RUNGS
from benchmarks.subjects import subject
from benchmarks.work import full_precision, matmul_peak
from shared.runs.machine import OtherJobs


@cache
def warm_block(name: str, rung: str) -> Callable[[], Any]:
    """A rung's block, compiled and run once."""
    block = RUNGS[rung].block(subject(name))
    block()
    return block


def prepare(name: str, rung: str) -> float:
    """Prepares a block, and returns the matmul peak in GFLOP/s measured just before it runs."""
    warm_block(name, rung)
    return matmul_peak()


def timed_block(name: str, rung: str) -> Block:
    """Times one block of one rung."""
    return timed(warm_block(name, rung))


def timed(block: Callable[[], Any]) -> Block:
    """Times a block, with the share of the machine that other jobs took."""
    others, begin = OtherJobs(), time.perf_counter()
    block()
    return Block(time.perf_counter() - begin, others.share())


class Processes:
    """Runs one process at a time, for the current algorithm."""

    def __init__(self) -> None:
        self._name = ""
        self._process: ProcessPoolExecutor | None = None

    def run(self, function: Callable[..., Any], name: str, *arguments: Any) -> Any:
        """Calls a function for an algorithm with further arguments in the algorithm's process; returns the result."""
        if self._process is None or name != self._name:
            self.close()
            self._name = name
            self._process = ProcessPoolExecutor(1, get_context("spawn"), initializer=full_precision)
        return self._process.submit(function, name, *arguments).result()

    def close(self) -> None:
        """Ends the process, which frees its memory."""
        if self._process:
            self._process.shutdown()
