"""Rungs of many algorithms on a machine that is lent by the minute: all compile side by side, then each is timed alone.

`pytest --benchmark-only --all-rungs` works sequentially, which takes hours if compilers are slow. Here each algorithm
also has a separate process, and all of them prepare their blocks at once. Once the last one is ready, or the time for
it
is up, the ready rungs take turns as usual. Each algorithm's row is written when it is measured.
"""

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

from benchmarks.blocks import prepare, timed_block
from benchmarks.results import SHIPPED_BLOCKS, WHAT_SHIPS, WHOLE_LADDER, Climb, Results, called, updates_per_second
from benchmarks.rungs import RUNGS, rungs_of
from benchmarks.subjects import UPDATES, subject
from benchmarks.work import full_precision, gflop_per_update


class Workers:
    """A process for each algorithm."""

    def __init__(self, names: Iterable[str]) -> None:
        # By default, each process would take three quarters of the GPU's memory.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        spawn = get_context("spawn")
        self._executors = {name: ProcessPoolExecutor(1, spawn, initializer=full_precision) for name in names}
        self._gflop = {name: executor.submit(gflop_per_update, name) for name, executor in self._executors.items()}

    def prepare(self, rungs: Sequence[str], seconds: float) -> dict[str, list[str]]:
        """Prepares rungs; returns the ready ones by algorithm. No preparation starts later, but it may finish."""
        end = time.perf_counter() + seconds
        with ThreadPoolExecutor(len(self._executors)) as threads:
            ready = threads.map(partial(self._prepare, rungs, end), self._executors)
            return dict(zip(self._executors, ready, strict=True))

    def _prepare(self, rungs: Sequence[str], end: float, name: str) -> list[str]:
        ready = []
        for rung in rungs:
            if rung in rungs_of(subject(name)) and time.perf_counter() < end:
                try:
                    self._executors[name].submit(prepare, name, rung).result()
                except Exception as error:
                    print(f"{name}, {rung}: {in_a_line(error)}", flush=True)
                else:
                    print(f"{name}, {rung}: ready {end - time.perf_counter():.0f} s before the end", flush=True)
                    ready.append(rung)
        return ready

    def measure(self, name: str, rungs: Sequence[str], results: Results) -> None:
        """Measures the rungs of one algorithm, block by block."""
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


def in_a_line(error: Exception) -> str:
    """An error's type, and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def climb_of(name: str, ready: Sequence[str], asked: Sequence[str]) -> Climb:
    """The rungs that are ready, or the default: if one of PyTorch's rungs is missing, its best rate may be too."""
    missing = set(asked) & set(rungs_of(subject(name))) - set(ready)
    if any(rung.startswith("PyTorch") for rung in missing):
        return WHAT_SHIPS
    return WHOLE_LADDER._replace(blocks=SHIPPED_BLOCKS, rungs=lambda _: list(ready))


def main() -> None:
    """Prepares, times, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help="which (default: all)")
    parser.add_argument("--rungs", nargs="+", choices=RUNGS, default=list(RUNGS), metavar="RUNG", help="which")
    parser.add_argument("--minutes", type=float, default=10.0, help="time to prepare (default: 10)")
    options = parser.parse_args()
    full_precision()
    if unknown := [name for name in options.algorithms if name not in UPDATES]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(UPDATES)}")
    workers = Workers(options.algorithms or UPDATES)
    ready = workers.prepare(options.rungs, 60 * options.minutes)
    command = called("together")["command"]
    for name, rungs in ready.items():
        climb = climb_of(name, rungs, options.rungs)
        results = Results(command, climb)
        try:
            workers.measure(name, [rung for rung in climb.rungs(name) if rung in rungs], results)
        except Exception as error:
            # A process whose recording failed may be unable to use the GPU afterwards; the other processes are fine.
            print(f"{name}: not measured: {in_a_line(error)}", flush=True)
            continue
        print(f"{results.table()}\n{results.write() or 'not written: what ships was not ready'}", flush=True)
    workers.close()


if __name__ == "__main__":
    main()
