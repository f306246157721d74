"""The process that a file is checked in: `process.py` starts it, and prints what it sends.

A message is a line of the channel: a word that only the two processes know, then a kind and a value in JSON.

    line     a line of the answer
    asked    what is asked of the file, for the line of progress
    running  the file's function that runs now, or nothing
    error    why the file cannot be used; the last one
    verdict  the exit status; the last one
"""

import faulthandler
import json
import os
import resource
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from port_checker.arguments import Tell
from shared.errors import InputError


def serve(check: Callable[[Sequence[str], Tell], int], arguments: Sequence[str]) -> NoReturn:
    """Checks, sends what comes of it, and ends the process at once, whatever the file has left running."""
    tell = _channel()
    try:
        tell("verdict", check(arguments, tell))
    except (InputError, OSError) as error:
        tell("error", str(error))
    except BaseException as error:
        # The file may raise anything, and have changed anything that the check runs on.
        traceback.print_exc()
        tell("error", f"the check stops with {type(error).__name__}: the trace above tells where")
    os._exit(0)


def _channel() -> Tell:
    """Takes standard input and output for messages; the file gets an empty input, and prints where errors go."""
    commands, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    (word, _, _) = _line(commands).partition(b"\n")
    threading.Thread(target=_end_with, args=(commands,), daemon=True).start()
    # Where a signal ends the process its last lines in Python are written there too; a core would be large.
    faulthandler.enable(answers)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Out of the reach of whoever replaces them
    encode, write = json.dumps, os.write

    def tell(kind: str, value: Any) -> None:
        write(answers, word + encode([kind, value]).encode() + b"\n")

    return tell


def _line(source: int) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        found += os.read(source, 1)
    return found


def _end_with(source: int) -> None:
    """Ends the process when the other one is gone, whatever ended it: its end of the pipe is closed then."""
    os.read(source, 1)
    os._exit(1)


def main() -> NoReturn:
    """Checks as the command line says."""

    def check(arguments: Sequence[str], tell: Tell) -> int:
        # Imported here, where what it prints is not taken for a message
        from port_checker import check

        return check.main(arguments, tell)

    serve(check, sys.argv[1:])


if __name__ == "__main__":
    main()
