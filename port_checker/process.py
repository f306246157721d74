"""`corl-twins check`: runs the check in a separate process, so that a file that crashes, hangs or exits fools nobody.

That process sends messages (`child.py`) through a channel that the file's prints do not reach, and this process prints
everything. This process imports neither framework, so that a check loads them only once.
"""

import contextlib
import json
import math
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from port_checker.arguments import LOADING, parse_arguments
from shared.errors import InputError

HOUSE = Path(__file__).resolve().parents[1]

# Whatever a file imports, all it has to do is define functions.
LOADING_LIMIT = 120
# The time to report where the file is when time is up, or to print the remaining output after the verdict
GRACE = 5


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status.

    Raises:
        InputError: The command line or the file cannot be used, or the check ended without a verdict.
    """
    options = parse_arguments(arguments)
    if options.template:
        # This runs none of the user's code, and it is the only part here that needs both frameworks.
        from parity_tests.pairs import PAIRS
        from port_checker.finding.template import template

        print(template(PAIRS[options.template]), end="")
        return 0
    command = [sys.executable, "-u", "-P", "-m", "port_checker.child", *arguments]
    return watch(command, options.file, options.time_limit)


# ---- the process that checks ----------------------------------------------------------------------------------------


def watch(command: Sequence[str], file: Path, seconds: float) -> int:
    """Runs the process that checks a file and prints its messages; returns the exit status that it sends last.

    Raises:
        InputError: The process sends an error, or ends without a verdict.
    """
    with _Checking(command, file.name, seconds) as checking, _progress() as bar:
        kind, value = "error", ""
        for kind, value in checking.messages(bar.refresh):
            if kind == "asked":
                bar.set_description_str(plain(value))
            elif kind == "line":
                tqdm.write(plain(value), file=sys.stdout)
                sys.stdout.flush()
            else:
                break
        else:
            kind, value = "error", checking.ended()
        checking.drain()
    sys.stderr.writelines(f"{plain(line)}\n" for line in checking.printed.lines(file.name))
    if kind == "error":
        raise InputError(plain(value))
    return int(value)


def plain(text: str) -> str:
    """Escapes every character that could move a terminal's cursor."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def _progress() -> tqdm:
    """A progress line with the current question, on terminals only."""
    return tqdm(desc="starting", bar_format="{desc} [{elapsed}]", leave=False, disable=None)


class _Checking:
    """The process that checks a file, from its start to its end.

    It has a session of its own: it ends together with everything that it starts, and Ctrl-C reaches only this process.

    Args:
        command: The command to start.
        file: The name of the file, for messages.
        seconds: The time limit.
    """

    def __init__(self, command: Sequence[str], file: str, seconds: float) -> None:
        self.printed = Printed()
        self._file, self._seconds = file, seconds
        self._running = ""
        # The traceback that faulthandler writes when a signal ends the interpreter
        self._trace: list[str] = []
        self._late: float | None = None
        path = os.pathsep.join([str(HOUSE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # One thread, unless the user wants more: NumPy's threads waste minutes on such small products.
            env={"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        self._deadline = time.monotonic() + seconds
        self._loaded = math.inf
        # A message counts only with this word, which only the two processes know.
        self._word = secrets.token_hex().encode()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._fd("stdin"), self._word + b"\n")
        self._pipes = selectors.DefaultSelector()
        self._pipes.register(self._fd("stderr"), selectors.EVENT_READ)
        self._pipes.register(self._fd("stdout"), selectors.EVENT_READ)

    def _fd(self, name: str) -> int:
        return getattr(self._process, name).fileno()

    def __enter__(self) -> "_Checking":
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)
        self._process.wait()
        self._pipes.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _end(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    # ---- what it sends

    def messages(self, waiting: Callable[[], object]) -> Iterator[tuple[str, Any]]:
        """Yields its messages, until it ends or its time is up; `waiting` is called a few times a second."""
        rest = b""
        while data := self._read(waiting):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(self._word):
                    self._trace.append(line.decode(errors="replace"))
                    continue
                kind, value = json.loads(line.removeprefix(self._word))
                if kind == "running":
                    self._running = value
                    self._loaded = time.monotonic() + LOADING_LIMIT if value == LOADING else math.inf
                else:
                    yield kind, value

    def _read(self, waiting: Callable[[], object]) -> bytes:
        """The next bytes of its messages, empty if there will be no more; output printed meanwhile is stored."""
        while True:
            self._keep_time()
            ready = [key.fd for key, _ in self._pipes.select(timeout=0.2)]
            waiting()
            if self._fd("stderr") in ready:
                self._put_by()
            if self._fd("stdout") in ready:
                return os.read(self._fd("stdout"), 1 << 16)
            if not ready and self._process.poll() is not None:
                return b""

    def _put_by(self) -> None:
        data = os.read(self._fd("stderr"), 1 << 16)
        self.printed.add(data)
        if not data:
            self._pipes.unregister(self._fd("stderr"))

    def _keep_time(self) -> None:
        """Signals the process to report where it is when its time is up, and kills it if it does not."""
        now = time.monotonic()
        if now < min(self._deadline, self._loaded):
            return
        if self._late is None:
            self._late = self._seconds if now >= self._deadline else LOADING_LIMIT
            self._deadline, self._loaded = now + GRACE, math.inf
            self._process.send_signal(signal.SIGABRT)
        else:
            self._end(signal.SIGKILL)

    def drain(self) -> None:
        """Stores the output that it printed before it ended."""
        end = time.monotonic() + GRACE
        while time.monotonic() < end and self._fd("stderr") in [key.fd for key, _ in self._pipes.select(timeout=0)]:
            self._put_by()

    # ---- how it ended

    def ended(self) -> str:
        """Explains in one line why there is no verdict."""
        advice = "; --time-limit SECONDS allows more" if self._late == self._seconds else ""
        return f"{self._file} {self._end_in_words()}{self._where()}{advice}"

    def _end_in_words(self) -> str:
        if self._late is not None:
            return f"gave no answer within {self._late:g} s"
        try:
            status = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return "closed what the check answers through"
        if status >= 0:
            return f"ended the process, with exit status {status}"
        if status == -signal.SIGKILL:
            return "was killed (SIGKILL), as by a system that is out of memory"
        return f"was ended by {signal.Signals(-status).name}: {signal.strsignal(-status)}"

    def _where(self) -> str:
        """The file's function that was running, and its line if the interpreter could still report it."""
        if not self._running:
            return ""
        lines = (re.search(r'File "(.*)", line (\d+) in ', line) for line in self._trace)
        inside = [line[2] for line in lines if line and Path(line[1]).name == self._file]
        return f", while it ran {self._running}" + (f" (line {inside[0]})" if inside else "")


class Printed:
    """The output that a file prints: the beginning and the end are kept, and the rest is only counted."""

    _BYTES, _LINES = 2000, 10

    def __init__(self) -> None:
        self._size = 0
        self._first = self._last = b""

    def add(self, data: bytes) -> None:
        """Adds the next bytes."""
        room = self._BYTES - len(self._first)
        self._size += len(data)
        self._first += data[:room]
        self._last = (self._last + data[room:])[-self._BYTES :]

    def lines(self, file: str) -> Iterator[str]:
        """Yields all of it, or the first and the last lines, after a heading that names the file."""
        kept = self._first + self._last
        lines = kept.splitlines()
        if not lines:
            return
        if len(kept) == self._size and len(lines) <= 2 * self._LINES:
            yield f"{file} printed:"
        else:
            first, last = self._first.splitlines()[: self._LINES], (self._last or self._first).splitlines()
            lines = [*first, b"...", *last[-self._LINES :]]
            yield f"{file} printed {self._size:,} bytes; the first and the last lines of them:"
        for line in lines:
            yield "  " + line.decode(errors="replace")
