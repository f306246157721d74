"""Ctrl-C while modules are still being imported, when there is nothing to save and no code to catch an exception."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

_Handler = Callable[[int, FrameType | None], Any]


def end_at_once() -> None:
    """From now on, Ctrl-C ends the process with one line and status 130, until `raise_again`.

    An exception would not work: raised inside a package that is being imported, it may turn into another one, or
    vanish. Nothing changes if Ctrl-C is ignored, as in a shell's background jobs, or has another handler. Nothing
    changes outside the main thread either, because Python only handles signals there.
    """
    _replace(signal.default_int_handler, _end)


def raise_again() -> None:
    """Makes Ctrl-C raise `KeyboardInterrupt` again, if `end_at_once` has changed that."""
    _replace(_end, signal.default_int_handler)


@contextlib.contextmanager
def ended_at_once() -> Iterator[None]:
    """Within the block, Ctrl-C ends the process, as after `end_at_once`."""
    end_at_once()
    try:
        yield
    finally:
        raise_again()


def _replace(old: _Handler, new: _Handler) -> None:
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGINT) is old:
        signal.signal(signal.SIGINT, new)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"interrupted\n")  # the buffer of stderr may be in use
    os._exit(130)
