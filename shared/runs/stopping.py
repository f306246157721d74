"""Ctrl-C and SIGTERM as requests: a run ends within seconds, at a consistent state, and the user hears so at once."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import ClassVar, Self

from tqdm import tqdm

from shared.errors import Stopped

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

GRACE = 4.0
"""Seconds after the signal in which a background evaluation may still finish."""

_PATIENCE = 8.0
# How long a checkpoint that is being written may delay the end
_LONGEST_SAVE = 120.0


class StopRequest:
    """Stores the first of the two signals; the second ends the process at once. A context manager.

    Python runs a handler only between two of its own instructions, and a framework may compute for minutes between
    them. Therefore a separate thread, woken by the interpreter's signal pipe, answers the user and obeys the second
    signal. It also ends the process if the run has not ended eight seconds after the first signal, for example while a
    program compiles. The files on disk are complete then, so the run can be resumed from them.

    Python handles signals only in the main thread. A request in another thread therefore shares the signals of the main
    thread's request, if there is one. Of nested requests in the main thread, the innermost receives the signals.
    """

    _in_main: ClassVar["StopRequest | None"] = None

    def __init__(self, saved: Callable[[], str]) -> None:
        """Installs nothing yet; `saved` describes in a few words what a resumed run would start from."""
        self._number: int | None = None
        self._heard = 0.0
        self._heard_by = self
        self._saved = saved
        self._at_once = False
        self._writing = 0
        self._installed = False

    def __enter__(self) -> Self:
        """Installs both handlers; a signal that is ignored, as in a shell's background jobs, stays ignored."""
        if threading.current_thread() is not threading.main_thread():
            self._heard_by = StopRequest._in_main or self
            return self
        self._outer, StopRequest._in_main = StopRequest._in_main, self
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
        """Restores the previous handlers."""
        if not self._installed:
            return
        for each, handler in self._handlers.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(self._pipe)
        self._outbox.close()
        self._thread.join()
        self._inbox.close()
        self._installed = False
        StopRequest._in_main = self._outer

    @property
    def number(self) -> int | None:
        """The first signal, or None if there was none."""
        return self._heard_by._number

    def obey(self) -> None:
        """Ends the run if a signal has arrived.

        Raises:
            Stopped: A signal has arrived.
        """
        if self.number is not None:
            raise Stopped(self._saved(), self.number)

    def obey_after_grace(self) -> None:
        """Ends the run if a signal has arrived more than `GRACE` seconds ago, for a run that waits for an evaluation.

        Raises:
            Stopped: A signal has arrived, and the time is over.
        """
        if self.number is not None and time.monotonic() - self._heard_by._heard > GRACE:
            self.obey()

    @contextlib.contextmanager
    def obeyed_at_once(self) -> Iterator[None]:
        """Marks a block in which there is nothing to save: a signal before or during the block ends it at once.

        Raises:
            Stopped: A signal has arrived.
        """
        self._at_once = True
        try:
            self.obey()
            yield
        finally:
            self._at_once = False

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Marks a block that writes a checkpoint, which the end of the process must not interrupt."""
        self._heard_by._writing += 1
        try:
            yield
        finally:
            self._heard_by._writing -= 1

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._number is None:
            self._heard, self._number = time.monotonic(), number
        if self._at_once:
            self.obey()

    def _answer(self, taken: list[int]) -> None:
        """The thread: reports the first signal, and ends the process at the second, or if the first is not obeyed."""
        first, heard = 0, 0.0
        while True:
            try:
                byte = self._inbox.recv(1)
            except TimeoutError:
                if not self._writing or time.monotonic() - heard > _LONGEST_SAVE:
                    _end(first, f"not over after {time.monotonic() - heard:.0f} s, so ended as it is; {self._saved()}")
                self._inbox.settimeout(0.1)
                continue
            if not byte:
                return
            number = byte[0]
            if number not in taken:
                continue
            if first:
                _end(number, f"again: stopped at once; {self._saved()}", " ")
            first, heard = number, time.monotonic()
            self._inbox.settimeout(_PATIENCE)
            what = "now" if self._at_once else "after the current update"
            _say(f"{signal.Signals(number).name}: stopping {what}; again to quit without saving")


def _end(number: int, why: str, behind: str = ": ") -> None:
    _say(f"{signal.Signals(number).name}{behind}{why}")
    os._exit(128 + number)


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()
