"""A line for each block: which algorithm, which rung, which block of how many, how fast, how long the rest may take."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A block of a rung of an algorithm; blocks count from 0."""

    name: str
    block: int
    rung: str


class Progress:
    """Says which block begins, and how it ended.

    Args:
        cases: All that will be timed, in order.
        write: Takes text that follows what was written before.
        clock: In seconds.
    """

    def __init__(
        self, cases: Sequence[Case], write: Callable[[str], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._left, self._write, self._clock = list(cases), write, clock
        self._blocks = 1 + max(case.block for case in cases)
        self._begin = 0.0
        self._ready: set[Any] = set()
        # Seconds of first blocks with all that makes them ready, and of blocks alone
        self._firsts: list[float] = []
        self._alone: list[float] = []

    def begin(self, case: Case) -> None:
        """A line's first half."""
        self._begin = self._clock()
        compiles = "" if (case.name, case.rung) in self._ready else " (compiles first)"
        self._write(f"\n{case.name}, {case.rung}, block {case.block + 1} of {self._blocks}{compiles}: ")

    def end(self, case: Case, seconds: float, rate: float, disturbed: bool) -> None:
        """Its second half.

        Args:
            case: The one that began.
            seconds: What the block itself took.
            rate: Its updates per second.
            disturbed: Whether other jobs took so much of the machine that it does not count.
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
        """Seconds that the rest will take, if first blocks and later ones take what they took so far."""
        firsts = {(case.name, case.rung) for case in self._left} - self._ready
        return float(len(firsts) * np.mean(self._firsts) + (len(self._left) - len(firsts)) * np.mean(self._alone))
