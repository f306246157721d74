"""A run's progress: the number of updates and their rate, the progress bar, and lines printed above the bar."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import psutil
from tqdm.auto import tqdm

from shared.runs import seeds

_silent = False


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Hides the bar and the lines of `say` within the block; warnings are still printed."""
    global _silent
    before, _silent = _silent, True
    try:
        yield
    finally:
        _silent = before


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this program; its front end draws bars although it is not a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def say(line: str) -> None:
    """Prints a line above the bar, and flushes it."""
    if _silent:
        return
    tqdm.write(seeds.label() + line)
    sys.stdout.flush()


def warn(line: str) -> None:
    """Prints a line to standard error, above the bar, and flushes it."""
    tqdm.write(seeds.label() + line, file=sys.stderr)
    sys.stderr.flush()


class _Moment(NamedTuple):
    """The progress of a run: updates done, and seconds of training."""

    updates: int
    seconds: float


class Progress:
    """Counts a run's updates and seconds. Its rate, and the bar's, exclude time spent waiting for evaluations.

    Attributes:
        updates: Number of updates done.
        evaluating: Seconds spent waiting for evaluations.
        seconds_to_first_update: Seconds from the start of the process to the first update; None before it.
        bar: The progress bar; set by `begin`.
    """

    bar: tqdm

    def __init__(self) -> None:
        """Starts a new count; `begin` starts the clock."""
        self.updates = 0
        self.evaluating = 0.0
        self.seconds_to_first_update: float | None = None
        self._seconds_before = 0.0
        self._warm: _Moment | None = None
        self._latest = _Moment(0, 0.0)

    def go_on_from(self, updates: int, seconds: float, evaluating: float) -> None:
        """Restores the counts of a resumed run."""
        self.updates, self._seconds_before, self.evaluating = updates, seconds, evaluating

    def begin(self, total: int, initial: int, unit: str) -> None:
        """Creates the bar, from `initial` to `total` units, and starts the clock."""
        # A bar that is redrawn would flood a log file, so only terminals and notebooks get one.
        self.bar = tqdm(
            total=total,
            initial=initial,
            unit=f" {unit}s",
            desc=seeds.label().removesuffix(": ") or None,
            disable=True if _silent else False if _in_notebook() else None,
            dynamic_ncols=True,
        )
        self._entered = time.perf_counter() - self._seconds_before
        self._begun = _Moment(self.updates, self.seconds_training())

    def started(self) -> None:
        """Prints, once, the time from the start of the process to the first update."""
        if self.seconds_to_first_update is None:
            self.seconds_to_first_update = time.time() - psutil.Process().create_time()
            say(f"first update {self.seconds_to_first_update:.1f} s after the process started")

    def advance(self, updates: int, units: int) -> None:
        """Counts updates, and moves the bar by `units`; the rate excludes the first call with updates."""
        self.updates += updates
        self._latest = _Moment(self.updates, self.seconds_training())
        self.bar.update(units)
        if updates and self._warm is None:
            self.started()
            self._warm = self._latest

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Counts the time in the block as evaluating."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.evaluating += seconds
        if not self.bar.disable:
            self.bar.start_t += seconds
            self.bar.last_print_t += seconds

    def seconds(self) -> float:
        """Seconds since the run began, excluding the time between a stop and a resumption."""
        return time.perf_counter() - self._entered

    def seconds_training(self) -> float:
        """Seconds since the run began, excluding evaluations."""
        return self.seconds() - self.evaluating

    def updates_per_second(self) -> float | None:
        """The rate over all calls of `advance` but the first, or over a first call alone; None before it."""
        if self._warm is None:
            return None
        since = self._warm if self._latest.updates > self._warm.updates else self._begun
        return (self._latest.updates - since.updates) / (self._latest.seconds - since.seconds)
