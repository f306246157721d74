"""What commands share: a bad command line is bad input like any other, and no file is replaced without a word."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from shared.errors import InputError, RunError


class Parser(argparse.ArgumentParser):
    """Reports a bad command line as an InputError."""

    def error(self, message: str) -> NoReturn:
        """Raises what argparse would print before it exits."""
        raise InputError(f"{message}; --help explains")


def at_least(least: int) -> Callable[[str], int]:
    """A type of whole numbers for argparse, which passes on what is raised."""

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
    """Whether a file may be written there.

    Raises:
        InputError: It is there already, and nobody said that it may be replaced.
    """
    if path.exists() and not overwrite:
        raise InputError(f"{path} is there already: name another file, or replace it with --overwrite")


def ended(command: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Runs a command; returns its exit status: 2 after one line on stderr where its input cannot be used.

    It is 1 where what a run has left holds numbers that are none.
    """
    try:
        command(arguments)
    except (InputError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0
