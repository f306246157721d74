"""Blocks of updates, timed one by one.

Each algorithm has its own process, because in a process that has run others before, a scan can lose a quarter of its
speed (EDAC's does on a CPU).
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.results import DISTURBED, Block, spread
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


def in_turns(
    processes: Mapping[str, Processes],
    prepare: Callable[[str, str], Any],
    timed_block: Callable[[str, str], Block],
    name: str,
    updates: int,
    blocks: int,
) -> dict[str, Any]:
    """Updates per second of each program of an algorithm, by the program's name.

    Args:
        processes: A process for each program; the programs take turns.
        prepare: Called in a process with `name` and its program, before the first block.
        timed_block: Times a block; called likewise.
        name: The algorithm, or the case of it.
        updates: The updates in a block.
        blocks: The blocks of each program.
    """
    for program, process in processes.items():
        process.run(prepare, name, program)
    found: dict[str, list[Block]] = {program: [] for program in processes}
    for _ in range(blocks):
        for program, process in processes.items():
            found[program].append(process.run(timed_block, name, program))
    return {
        program: {
            "updates_per_second": spread(updates / np.array([block.seconds for block in timings])),
            "blocks_undisturbed": sum(block.others < DISTURBED for block in timings),
        }
        for program, timings in found.items()
    }
