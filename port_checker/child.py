"""The process in which a file is checked: `process.py` starts it, and prints what it sends.

Each message is one line of the channel: a word that only the two processes know, then a kind and a value in JSON.

    line     a line of the answer
    asked    the current question to the file, for the progress line
    running  the file's function that is running, or nothing
    error    why the file cannot be used; the last message
    verdict  the exit status; the last message
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
    """Runs the check, sends its result, and ends the process at once, even if the file left something running."""
    tell = _channel()
    try:
        tell("verdict", check(arguments, tell))
    except (InputError, OSError) as error:
        tell("error", str(error))
    except BaseException as error:
        # The file may raise anything, and may have changed anything that the check depends on.
        traceback.print_exc()
        tell("error", f"the check stops with {type(error).__name__}: the trace above tells where")
    os._exit(0)


def _channel() -> Tell:
    """Reserves standard input and output for messages; the file gets an empty input, and its prints go to stderr."""
    commands, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    (word, _, _) = _line(commands).partition(b"\n")
    threading.Thread(target=_end_with, args=(commands,), daemon=True).start()
    # If a signal kills the process, faulthandler writes its last Python lines there too. A core dump would be large.
    faulthandler.enable(answers)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Kept here, so that a file that replaces them does not break the channel
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
    """Ends the process when its parent is gone for any reason, because the parent's end of the pipe is closed then."""
    os.read(source, 1)
    os._exit(1)


def main() -> NoReturn:
    """Runs the check that the command line specifies."""

    def check(arguments: Sequence[str], tell: Tell) -> int:
        # Imported here, so that anything it prints is not taken for a message
        from port_checker import check

        return check.main(arguments, tell)

    serve(check, sys.argv[1:])


if __name__ == "__main__":
    main()
