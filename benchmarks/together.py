"""Rungs of many algorithms on a machine that is lent by the minute: all compile side by side, then each is timed alone.

`pytest --benchmark-only --all-rungs` does one thing after the other, which takes hours where compilers are slow. Here
each algorithm has a process of its own as well, and all of them prepare their blocks at once. Once the last is ready,
or the time for it is up, the rungs that are ready take turns as usual. Each algorithm's row is written when it is
measured.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context

from benchmarks.blocks import prepare, timed_block
from benchmarks.results import SHIPPED_BLOCKS, Climb, Results, updates_per_second
from benchmarks.rungs import RUNGS, rungs_of
from benchmarks.subjects import UPDATES, subject
from benchmarks.work import full_precision, gflop_per_update

Ready = dict[str, dict[str, "Future[float]"]]


class Workers:
    """A process for each algorithm."""

    def __init__(self, names: Iterable[str]) -> None:
        # Left alone, each process would take three quarters of the GPU's memory.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        spawn = get_context("spawn")
        self._executors = {name: ProcessPoolExecutor(1, spawn, initializer=full_precision) for name in names}
        self._gflop = {name: executor.submit(gflop_per_update, name) for name, executor in self._executors.items()}

    def prepare(self, rungs: Sequence[str], seconds: float) -> Ready:
        """The rungs that became ready in this time, by algorithm; one that has begun by then is waited for."""
        found: Ready = {
            name: {rung: executor.submit(prepare, name, rung) for rung in rungs if rung in rungs_of(subject(name))}
            for name, executor in self._executors.items()
        }
        futures = [future for of_one in found.values() for future in of_one.values()]
        wait(futures, seconds)
        for future in futures:
            future.cancel()
        wait(future for future in futures if not future.cancelled())
        return {name: {rung: f for rung, f in of_one.items() if _done(name, rung, f)} for name, of_one in found.items()}

    def measure(self, name: str, rungs: Sequence[str], results: Results) -> None:
        """The rungs of one algorithm, block by block."""
        executor = self._executors[name]
        results.gflop[name] = self._gflop[name].result()
        for _ in range(results.climb.blocks):
            for rung in rungs:
                results.peak = max(results.peak, executor.submit(prepare, name, rung).result())
                block = executor.submit(timed_block, name, rung).result()
                results.add(name, rung, block)
                print(f"{name}, {rung}: {updates_per_second(name, rung, block):.1f} updates/s", flush=True)

    def close(self) -> None:
        """Ends all processes."""
        for executor in self._executors.values():
            executor.shutdown()


def _done(name: str, rung: str, future: "Future[float]") -> bool:
    if not future.cancelled() and (error := future.exception()):
        print(f"{name}, {rung}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
        return False
    return not future.cancelled()


def main() -> None:
    """Prepares, times, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help="which (default: all)")
    parser.add_argument("--rungs", nargs="+", choices=RUNGS, default=list(RUNGS), metavar="RUNG", help="which")
    parser.add_argument("--minutes", type=float, default=10.0, help="time to prepare (default: 10)")
    options = parser.parse_args()
    if unknown := [name for name in options.algorithms if name not in UPDATES]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(UPDATES)}")
    workers, begin = Workers(options.algorithms or UPDATES), time.perf_counter()
    ready = workers.prepare(options.rungs, 60 * options.minutes)
    print(f"ready after {time.perf_counter() - begin:.0f} s", flush=True)
    command = shlex.join(["python", "-m", "benchmarks.together", *sys.argv[1:]])
    results = Results(command, Climb("updates", SHIPPED_BLOCKS, lambda name: list(ready[name]), by_rows=True))
    for name in ready:
        workers.measure(name, list(ready[name]), results)
        results.write()
    print(results.table())
    workers.close()


if __name__ == "__main__":
    main()
