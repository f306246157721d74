"""How far a run has come and how fast, the bar that shows it, and lines that are printed above the bar."""

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
    """Within it no bar is shown and `say` prints nothing; warnings are printed."""
    global _silent
    before, _silent = _silent, True
    try:
        yield
    finally:
        _silent = before


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this program, whose front end draws bars though it is no terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def say(line: str) -> None:
    """Prints a line above the bar, at once also where output is buffered."""
    if _silent:
        return
    tqdm.write(seeds.label() + line)
    sys.stdout.flush()


def warn(line: str) -> None:
    """Likewise to standard error."""
    tqdm.write(seeds.label() + line, file=sys.stderr)
    sys.stderr.flush()


class _Moment(NamedTuple):
    """How far a run has come: updates, and seconds of training."""

    updates: int
    seconds: float


class Progress:
    """Counts a run's updates and its seconds. What it waits for evaluations is left out of the rate, the bar's too.

    Attributes:
        updates: Those that are done.
        evaluating: Seconds that the run waited for evaluations.
        seconds_to_first_update: From the start of the process; None before that update.
        bar: There from `begin` on.
    """

    bar: tqdm

    def __init__(self) -> None:
        """Of a new run; no time passes before `begin`."""
        self.updates = 0
        self.evaluating = 0.0
        self.seconds_to_first_update: float | None = None
        self._seconds_before = 0.0
        self._warm: _Moment | None = None
        self._latest = _Moment(0, 0.0)

    def go_on_from(self, updates: int, seconds: float, evaluating: float) -> None:
        """Takes over what a resumed run had counted."""
        self.updates, self._seconds_before, self.evaluating = updates, seconds, evaluating

    def begin(self, total: int, initial: int, unit: str) -> None:
        """Makes the bar, from `initial` to `total` units; time passes from here on."""
        # A bar redrawn into a log file would flood it, so there is one on terminals and in notebooks only.
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
        """Prints, once, how long after the process started the first update was done."""
        if self.seconds_to_first_update is None:
            self.seconds_to_first_update = time.time() - psutil.Process().create_time()
            say(f"first update {self.seconds_to_first_update:.1f} s after the process started")

    def advance(self, updates: int, units: int) -> None:
        """Counts updates, and moves the bar by `units`; the first call with updates is left out of the rate."""
        self.updates += updates
        self._latest = _Moment(self.updates, self.seconds_training())
        self.bar.update(units)
        if updates and self._warm is None:
            self.started()
            self._warm = self._latest

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """A stretch that counts as evaluating."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.evaluating += seconds
        if not self.bar.disable:
            self.bar.start_t += seconds
            self.bar.last_print_t += seconds

    def seconds(self) -> float:
        """Since the run began; of a resumed run without the time in between."""
        return time.perf_counter() - self._entered

    def seconds_training(self) -> float:
        """Likewise, evaluations left out."""
        return self.seconds() - self.evaluating

    def updates_per_second(self) -> float | None:
        """Over all calls of `advance` but the first, or over that one while it is alone; None before it."""
        if self._warm is None:
            return None
        since = self._warm if self._latest.updates > self._warm.updates else self._begun
        return (self._latest.updates - since.updates) / (self._latest.seconds - since.seconds)
