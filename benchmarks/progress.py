"""Prints a line for each block: algorithm, rung, block number, speed, and the estimated time for the rest."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A block of a rung for an algorithm; blocks count from 0."""

    name: str
    block: int
    rung: str


class Progress:
    """Prints when a block begins, and its result.

    Args:
        cases: All blocks to be timed, in order.
        write: Called with text that follows the text before.
        clock: Returns seconds.
    """

    def __init__(
        self, cases: Sequence[Case], write: Callable[[str], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._left, self._write, self._clock = list(cases), write, clock
        self._blocks = 1 + max(case.block for case in cases)
        self._begin = 0.0
        self._ready: set[Any] = set()
        # Seconds of first blocks including their preparation, and of blocks alone
        self._firsts: list[float] = []
        self._alone: list[float] = []

    def begin(self, case: Case) -> None:
        """Prints the first half of a line."""
        self._begin = self._clock()
        compiles = "" if (case.name, case.rung) in self._ready else " (compiles first)"
        self._write(f"\n{case.name}, {case.rung}, block {case.block + 1} of {self._blocks}{compiles}: ")

    def end(self, case: Case, seconds: float, rate: float, disturbed: bool) -> None:
        """Prints the second half of a line.

        Args:
            case: The block that began.
            seconds: The time of the block itself.
            rate: Its updates per second.
            disturbed: Whether other jobs took too much of the machine for the block to count.
        """
        if (case.name, case.rung) not in self._ready:
            self._firsts.append(self._clock() - self._begin)
        self._alone.append(seconds)
        self._ready.add((case.name, case.rung))
        self._left.remove(case)
        minutes, seconds_left = divmod(round(self.left()), 60)
        beside = " (disturbed by other jobs)" if disturbed else ""
        self._write(f"{rate:.1f} updates/s{beside}; about {minutes}:{seconds_left:02d} left")

    def left(self) -> float:
        """The estimated seconds for the rest, if first and later blocks keep taking the same time."""
        firsts = {(case.name, case.rung) for case in self._left} - self._ready
        return float(len(firsts) * np.mean(self._firsts) + (len(self._left) - len(firsts)) * np.mean(self._alone))
