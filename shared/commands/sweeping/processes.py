"""The runs of a sweep as processes on this machine, several at a time."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, NamedTuple, Self

from shared.commands.sweeping.plan import Cell
from shared.errors import InputError
from shared.frameworks.twins import ROOT
from shared.runs.progress import warn
from shared.runs.resuming import fingerprint, run_name

# Seconds between two calls of `look`
_SECOND = 1.0


class Ended(NamedTuple):
    """The end of a process.

    Attributes:
        cells: The runs that it made.
        status: Its exit status; None if none was started, because a killed sweep's process still makes these runs.
        log: The file with its output.
    """

    cells: tuple[Cell, ...]
    status: int | None
    log: Path


class Order(NamedTuple):
    """A process that makes some runs.

    Attributes:
        arguments: Arguments of this project's own command.
        environment: Its environment variables, in addition to its parent's.
        folder: Its working directory.
        log: The file for its output.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: Path
    log: Path


def order(cells: tuple[Cell, ...], environment: dict[str, str], logs: Path) -> Order:
    """The process for a batch of runs, whose output goes into a file in `logs` with the first run's name."""
    first = cells[0]
    log = logs.absolute() / f"{run_name(first.config)}-{first.framework}-{fingerprint(first.config)}.log"
    several = (f"--seeds={len(cells)}",) if len(cells) > 1 else ()
    return Order(("train", first.framework, first.algorithm, *first.flags, *several), environment, Path.cwd(), log)


def make_room(logs: Path) -> None:
    """Creates the folder for the runs' output.

    Raises:
        InputError: It cannot be created.
    """
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {logs} ({error.strerror}): name another folder") from error


def carry_out(
    wanted: Order, patience: float = 0.0, begun: Callable[[subprocess.Popen], None] = lambda process: None
) -> int | None:
    """Makes some runs, in a process that does not receive Ctrl-C itself.

    Args:
        wanted: The order for the runs.
        patience: Seconds to wait for another process that still makes them.
        begun: Called with the process when it has started.

    Returns:
        Its exit status; None if another process still makes these runs.
    """
    with wanted.log.open("ab") as file:
        # The run's process inherits the file, and therefore holds the lock as long as it lives.
        if not _locked(file, patience):
            return None
        file.truncate(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "shared", *wanted.arguments],
            env={**os.environ, **wanted.environment, "PYTHONPATH": paths()},
            cwd=wanted.folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        begun(process)
        return process.wait()


def _locked(file: IO[bytes], patience: float) -> bool:
    """Locks the file; returns False if that does not succeed in time."""
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.2)
        else:
            return True


def paths() -> str:
    """The value of PYTHONPATH with which the packages of this project are found from any folder."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


class Processes:
    """Runs' processes in separate sessions, so that only signals from this process can interrupt them.

    A context manager. If an exception leaves it, it starts no further processes, stops the running ones, and waits
    until they have saved. If this process is killed, the runs continue to their ends.
    """

    def __init__(self, jobs: int, environment: dict[str, str], logs: Path, patience: float = 0.0) -> None:
        """Starts nothing yet.

        Args:
            jobs: The number of processes at a time.
            environment: Their environment variables, in addition to this process's.
            logs: The folder for their output.
            patience: Seconds to wait for another process that still makes one of their runs.
        """
        self._pool = ThreadPoolExecutor(jobs)
        self._environment, self._logs, self._patience = environment, logs, patience
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
        if going_on := sum(process.returncode is None for process in self._running):
            warn(f"stopping the runs of {going_on} processes, which save what they have; again to quit at once")
        with contextlib.suppress(KeyboardInterrupt):
            self._pass_on()
            self._pool.shutdown()
            return
        # A second signal ends a run at once.
        self._pass_on()
        self._pool.shutdown()

    def run(
        self,
        batches: Sequence[tuple[Cell, ...]],
        tell: Callable[[Ended], None],
        look: Callable[[], None] | None = None,
    ) -> None:
        """Makes the runs, in one process for each batch.

        Args:
            batches: The runs.
            tell: Called with each process that has ended.
            look: Called each second while processes are running, and before each call of `tell`.

        Raises:
            InputError: The folder of logs cannot be created.
        """
        make_room(self._logs)
        waiting: set[Future[Ended]] = {self._pool.submit(self._run, cells) for cells in batches}
        while waiting:
            done, waiting = wait(waiting, None if look is None else _SECOND, FIRST_COMPLETED)
            if look is not None:
                look()
            for future in done:
                tell(future.result())

    def _run(self, cells: tuple[Cell, ...]) -> Ended:
        wanted = order(cells, self._environment, self._logs)
        return Ended(cells, carry_out(wanted, self._patience, self._watch), wanted.log)

    def _watch(self, process: subprocess.Popen) -> None:
        """Registers a process, so that an exception in this one stops it."""
        self._running.add(process)
        if self._stopping:
            process.send_signal(signal.SIGINT)

    def _pass_on(self) -> None:
        for process in list(self._running):
            process.send_signal(signal.SIGINT)  # it has no effect on processes that have ended


def last_words(log: Path) -> str:
    """The last line that a run printed."""
    lines = log.read_text(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
