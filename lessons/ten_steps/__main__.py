"""`python -m lessons.ten_steps 3`: the board of step 3."""

import argparse
import sys

from lessons.ten_steps.board import NUMBERS, board
from shared.commands.common import Parser
from shared.errors import InputError


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line.

    Raises:
        InputError: There is no such step.
    """
    parser = Parser(prog="python -m lessons.ten_steps", description="Runs the parity checks on a step of the port.")
    parser.add_argument("step", type=int, choices=NUMBERS, help="its number")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    try:
        print(board(parse_arguments(arguments).step))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
