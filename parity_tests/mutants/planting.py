"""What both sides' climbs share: a twin with a changed source, the lines that a test comes by, and patience."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

# Seconds of the processor's time after which a test does not come to an end
PATIENCE = 120.0
# What is added to the step that did not come to an end
ENDLESS = " does not end"
# What notices a mutant that cannot be imported
IMPORT = "import"


class EndlessError(BaseException):
    """A test has not come to an end. No Exception, lest the mutant or a library catches it."""


def planted(name: str, source: str) -> ModuleType:
    """A twin with this source; its lines are those of the file `name`."""
    twin = ModuleType(name)
    exec(compile(source, name, "exec"), vars(twin))
    return twin


@contextmanager
def lines_of(file: str) -> Iterator[set[int]]:
    """Collects the numbers of the lines that are run in a file."""
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
    """Raises EndlessError after so many seconds of this process's own work, however busy the machine is."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise EndlessError

    before: Callable | int | None = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
