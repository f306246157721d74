"""The runs of a sweep as processes on this machine, some of them side by side."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple, Self

from shared.commands.sweeping.plan import Cell
from shared.errors import InputError
from shared.frameworks.twins import ROOT
from shared.runs.resuming import fingerprint, run_name


class Ended(NamedTuple):
    """How a run's process ended.

    Attributes:
        cell: The run.
        status: Its exit status; None where none was started, since a killed sweep's process still makes this run.
        log: The file of what it printed.
    """

    cell: Cell
    status: int | None
    log: Path


class Processes:
    """Runs' processes, each in a session of its own: only what this one passes on can interrupt them.

    A context manager. Left by an exception, it starts nothing more, asks the runs to stop, and waits until they have
    saved what they had. Where the driver is killed its runs go on to their ends.
    """

    def __init__(self, jobs: int, environment: dict[str, str], logs: Path) -> None:
        """Starts nothing yet.

        Args:
            jobs: Processes side by side.
            environment: What they see on top of this process's.
            logs: The folder of what they print.
        """
        self._pool = ThreadPoolExecutor(jobs)
        self._environment, self._logs = os.environ | environment, logs
        self._running: set[subprocess.Popen] = set()
        self._stopping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._pool.shutdown()
            return
        self._stopping = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(KeyboardInterrupt):
            self._pass_on()
            self._pool.shutdown()
            return
        # The second one ends a run at once.
        self._pass_on()
        self._pool.shutdown()

    def run(self, cells: Sequence[Cell]) -> Iterator[Ended]:
        """Runs all of them; yields each when it has ended.

        Raises:
            InputError: There is no room for what they print.
        """
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make {self._logs} ({error.strerror}): name another folder") from error
        waiting: set[Future[Ended]] = {self._pool.submit(self._run, cell) for cell in cells}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)

    def _run(self, cell: Cell) -> Ended:
        log = self._logs / f"{run_name(cell.config)}-{cell.framework}-{fingerprint(cell.config)}.log"
        command = [sys.executable, "-m", "shared", "train", cell.framework, cell.algorithm, *cell.flags]
        with log.open("ab") as file:
            # The run's process has the file too, and so the lock, from its first moment to its last.
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return Ended(cell, None, log)
            file.truncate(0)
            process = subprocess.Popen(
                command,
                env=self._environment | {"PYTHONPATH": self._paths()},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            if self._stopping:
                process.send_signal(signal.SIGINT)
            status = process.wait()
            self._running.discard(process)
        return Ended(cell, status, log)

    def _paths(self) -> str:
        """Where the packages of this suite are found from any folder."""
        return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    def _pass_on(self) -> None:
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)


def last_words(log: Path) -> str:
    """The last line that a run printed."""
    lines = log.read_text(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
