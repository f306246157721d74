"""Code that all commands share: it ends them, and prevents them from silently replacing files.

A command's module has `main(arguments)`, which returns an exit status, or None for success. It raises an error for
input that cannot be used, and `ended` prints it.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from shared.errors import InputError, RunError


class Parser(argparse.ArgumentParser):
    """Reports a bad command line as an InputError."""

    def error(self, message: str) -> NoReturn:
        """Raises the message that argparse would print before it exits."""
        raise InputError(f"{message}; --help explains")


def at_least(least: int) -> Callable[[str], int]:
    """A type for argparse: whole numbers of at least `least`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return parse


def check_free(path: Path, overwrite: bool) -> None:
    """Checks that a file may be written.

    Raises:
        InputError: The file exists, and `overwrite` is false.
    """
    if path.exists() and not overwrite:
        raise InputError(f"{path} is there already: name another file, or replace it with --overwrite")


def ended(command: Callable[[Sequence[str]], int | None], arguments: Sequence[str]) -> int:
    """Runs a command; returns its exit status.

    The status is 2 after one line on stderr if the input or a file cannot be used, and 130 after Ctrl-C. It is 1 if a
    run cannot continue, has diverged, or memory runs out. A reader of the output may stop early: `corl-twins datasets
    list | head`.
    """
    try:
        status = command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        from shared.runs.memory import is_exhausted

        if not is_exhausted(error):
            raise
        print("error: out of memory: ask for less at once", file=sys.stderr)
        return 1
    return status or 0
