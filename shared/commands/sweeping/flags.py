"""Flags for the resources of a run on a Ray cluster."""

import argparse
import contextlib
import math

from shared.commands.common import at_least

RAYS_OWN = ("gpus", "attempts", "hours")
"""Flags without effect unless Ray is used."""


def add_flags(group: argparse._ArgumentGroup) -> None:
    """Adds the flags to a command's group of flags."""
    group.add_argument("--gpus", type=_gpus, metavar="N", help="GPUs of each run; 0.5 shares one (default: 0)")
    group.add_argument("--attempts", type=at_least(0), metavar="N", help="further ones of a run that dies (default: 3)")
    group.add_argument(
        "--hours", type=_hours, metavar="H", help="stop all runs after that time; the next call resumes them"
    )


def _gpus(text: str) -> float:
    """Parses a number of GPUs, a share of one or a whole number, for argparse."""
    with contextlib.suppress(ValueError):
        if 0 <= (number := float(text)) < 1 or (number.is_integer() and number > 0):
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is neither a share of a GPU nor a whole number")


def _hours(text: str) -> float:
    """Parses a number of hours, for argparse."""
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is no time")
