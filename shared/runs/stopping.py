"""Ctrl-C and SIGTERM as requests: a run ends where its state is whole, and is told at once that it will."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import ClassVar, Self

from tqdm import tqdm

from shared.errors import Stopped

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Notes the first of the two signals; the second ends the process at once. A context manager.

    Python runs a handler only between two instructions of its own, and a framework may compute for minutes between
    them. So a thread of its own answers the user and obeys the second signal. The interpreter's signal pipe wakes that
    thread. Python knows no signals outside the main thread. A request there hears what the main thread's request hears,
    or nothing.
    """

    _in_main: ClassVar["StopRequest | None"] = None

    def __init__(self, saved: Callable[[], str]) -> None:
        """Installs nothing yet; `saved` tells in a few words what would be there to go on from."""
        self._number: int | None = None
        self._heard_by = self
        self._saved = saved
        self._at_once = False
        self._installed = False

    def __enter__(self) -> Self:
        """Installs both handlers; a signal that is ignored, as in a shell's background jobs, stays so."""
        if threading.current_thread() is not threading.main_thread():
            self._heard_by = StopRequest._in_main or self
            return self
        StopRequest._in_main = self
        self._inbox, self._outbox = socket.socketpair()
        self._outbox.setblocking(False)
        self._pipe = signal.set_wakeup_fd(self._outbox.fileno(), warn_on_full_buffer=False)
        taken = [each for each in _SIGNALS if signal.getsignal(each) not in (signal.SIG_IGN, None)]
        self._handlers = {each: signal.signal(each, self._note) for each in taken}
        self._thread = threading.Thread(target=self._answer, args=(taken,), daemon=True)
        self._thread.start()
        self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Puts everything back."""
        if not self._installed:
            return
        for each, handler in self._handlers.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(self._pipe)
        self._outbox.close()
        self._thread.join()
        self._inbox.close()
        self._installed = False
        StopRequest._in_main = None

    @property
    def number(self) -> int | None:
        """The first signal; None before it."""
        return self._heard_by._number

    def obey(self) -> None:
        """Raises what ends the run, if a signal has come.

        Raises:
            Stopped: One has.
        """
        if self.number is not None:
            raise Stopped(self._saved(), self.number)

    @contextlib.contextmanager
    def obeyed_at_once(self) -> Iterator[None]:
        """For a stretch in which there is nothing to save: a signal before it or within it ends it.

        Raises:
            Stopped: One has come.
        """
        self._at_once = True
        try:
            self.obey()
            yield
        finally:
            self._at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._number is None:
            self._number = number
        if self._at_once:
            self.obey()

    def _answer(self, taken: list[int]) -> None:
        """The thread: a line for the first signal, the end for the second."""
        first = True
        while byte := self._inbox.recv(1):
            number = byte[0]
            if number not in taken:
                continue
            name = signal.Signals(number).name
            if first:
                _say(f"{name}: saving as soon as the state is whole, then stopping; once more stops at once")
                first = False
                continue
            _say(f"{name} again: stopped at once; {self._saved()}")
            os._exit(128 + number)


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()
