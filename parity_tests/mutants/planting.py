"""Helpers for both kinds of mutants: a twin with a changed source, the lines that a test runs, and a time limit."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

# The processor time in seconds after which a test counts as endless
PATIENCE = 120.0
# A suffix for the step that did not terminate
ENDLESS = " does not end"
# The step that notices a mutant that cannot be imported
IMPORT = "import"


class EndlessError(BaseException):
    """A test has not terminated. This is not an Exception, so that neither the mutant nor a library catches it."""


def planted(name: str, source: str) -> ModuleType:
    """A twin with this source; its lines belong to the file `name`."""
    twin = ModuleType(name)
    exec(compile(source, name, "exec"), vars(twin))
    return twin


@contextmanager
def lines_of(file: str) -> Iterator[set[int]]:
    """Collects the numbers of the lines that run in a file."""
    found: set[int] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename == file else None

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        found.add(frame.f_lineno)
        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield found
    finally:
        sys.settrace(before)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises EndlessError after this much processor time, regardless of how busy the machine is."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise EndlessError

    before: Callable | int | None = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
