"""`python -m benchmarks.regression`: whether what ships is still as much faster than PyTorch eager as it was.

The ratio of the two is measured again, in turns, and compared with this machine's results files. The file with all
rungs
takes precedence over the file with only the default code, which has more algorithms. A ratio within one run varies less
than the rates, which depend on the machine's state. Blocks disturbed by other jobs do not count.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from benchmarks.blocks import Processes, prepare, timed_block
from benchmarks.results import BLOCKS, DISTURBED, WHAT_SHIPS, WHOLE_LADDER, Block, best, results_file
from benchmarks.rungs import EAGER, SHIPPED
from benchmarks.subjects import UPDATES
from shared.runs.machine import hardware

# The share of its ratio that an algorithm may lose. On an idle machine with two cores and with the same programs,
# ratios varied by 3% within an hour. From one day to another some rose by more (TD3+BC's because PyTorch was slower);
# none fell.
TOLERANCE = 0.1
# Attempts at undisturbed blocks, for each turn needed
ATTEMPTS = 4


class Busy(Exception):
    """Other jobs left no block undisturbed."""


def undisturbed(name: str, *timers: Callable[[], Block]) -> list[tuple[Block, ...]]:
    """Times `BLOCKS` rounds of undisturbed blocks, one block of each kind; a disturbed round is repeated.

    Raises:
        Busy: Too many rounds were disturbed.
    """
    found = []
    for _ in range(BLOCKS * ATTEMPTS):
        blocks = tuple(timer() for timer in timers)
        if max(block.others for block in blocks) < DISTURBED:
            found.append(blocks)
        if len(found) == BLOCKS:
            return found
    raise Busy(f"{name}: {len(found)} of {BLOCKS * ATTEMPTS} turns undisturbed: try again on an idle machine")


def pairs(processes: Processes, name: str) -> list[tuple[Block, Block]]:
    """Undisturbed blocks of an algorithm, eager and shipped.

    Raises:
        Busy: Other jobs left too few.
    """
    rungs = (EAGER, SHIPPED)
    for rung in rungs:
        processes.run(prepare, name, rung)
    blocks = undisturbed(name, *(partial(processes.run, timed_block, name, rung) for rung in rungs))
    return [(eager, shipped) for eager, shipped in blocks]


def ratio(pairs: Sequence[tuple[Block, Block]]) -> float:
    """The speed-up of the default code, by the best block of each side; both make the same number of updates."""
    eager, shipped = (min(block.seconds for block in blocks) for blocks in zip(*pairs, strict=True))
    return eager / shipped


def verdict(name: str, before: float, now: float) -> tuple[str, bool]:
    """A line about an algorithm, and whether it kept its ratio."""
    kept = now >= before * (1 - TOLERANCE)
    return f"{name}: {now:.2f} times {EAGER}, {before:.2f} in the results file{'' if kept else ': SLOWER'}", kept


def expected(found: dict[str, Any]) -> float:
    """An algorithm's ratio in a results file."""
    return best(found, SHIPPED) / best(found, EAGER)


def main() -> None:
    """Prints a line per algorithm; exits with 1 if one lost more than the tolerance, with 2 if none was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithm", nargs="?", choices=UPDATES, help="one of them (default: all)")
    chosen = parser.parse_args().algorithm
    paths = [results_file(climb.kind, hardware()) for climb in (WHAT_SHIPS, WHOLE_LADDER)]
    algorithms: dict[str, Any] = {}
    for path in paths:
        if path.exists():
            found = json.loads(path.read_text())["algorithms"]
            algorithms |= {name: row for name, row in found.items() if EAGER in row["rungs"]}
    if not algorithms:
        parser.error(f"this machine has no results file ({paths[0].name}): run `pytest --benchmark-only` once")
    if chosen and chosen not in algorithms:
        parser.error(f"{chosen} is not in {paths[0].name}: run `pytest --benchmark-only -k '[{chosen}-'` once")
    lost = False
    with closing(Processes()) as processes:
        for name in [chosen] if chosen else algorithms:
            try:
                now = ratio(pairs(processes, name))
            except Busy as busy:
                parser.error(str(busy))
            line, kept = verdict(name, expected(algorithms[name]), now)
            print(line, flush=True)
            lost |= not kept
    sys.exit(int(lost))


if __name__ == "__main__":
    main()
