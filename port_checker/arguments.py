"""The command line of `corl-twins check`, and the names that its two processes share."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from shared.commands.common import Parser, at_least
from shared.frameworks.twins import algorithms, name_of

# A correct port is checked within a minute; a slow machine, or a debugger's file, may need ten times that.
TIME_LIMIT = 600

# In a message, the name of what runs while the file is imported
LOADING = "the file"

# Sends a message with this kind and value: see `child.py`
Tell = Callable[[str, Any], None]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `--help` describes it.

    Raises:
        InputError: The command line is invalid.
    """
    parser = Parser(
        prog="corl-twins check",
        description="Compares your own port, in JAX or PyTorch, with our twins, step by step. THE FILE IS EXECUTED "
        "like any import, in a process of its own, so check only files that you trust. The exit status is 0 if "
        "all checks pass, 1 if one fails or something isn't written yet, and 2 if the file can't be used. "
        "docs/port/check.md lists what the file must hold.",
    )
    parser.epilog = f"NAME is one of {_in_short(algorithms('jax'))}."
    parser.add_argument("file", nargs="?", type=Path, help="the file to check")
    parser.add_argument("--algorithm", metavar="NAME", help="the algorithm that it is a port of")
    parser.add_argument("--template", metavar="NAME", help="print a file to start from, and check nothing")
    parser.add_argument(
        "--settings",
        nargs="+",
        metavar="SETTINGS",
        help="check under these sets of settings only, such as `default`",
    )
    parser.add_argument(
        "--time-limit",
        type=at_least(1),
        default=TIME_LIMIT,
        metavar="SECONDS",
        help=f"end the check after this time (default: {TIME_LIMIT})",
    )
    options = parser.parse_args(arguments)
    if not options.template and not (options.file and options.algorithm):
        parser.error("give a file and its --algorithm, or --template")
    for what in ("algorithm", "template"):
        if name := getattr(options, what):
            setattr(options, what, name_of("jax", name))
    return options


def _in_short(names: Iterable[str]) -> str:
    """Lists names, grouped by folder: `awac, discrete/{bc,cql}`."""
    folders: dict[str, list[str]] = {}
    for name in names:
        folder, _, algorithm = name.rpartition("/")
        folders.setdefault(folder, []).append(algorithm)
    own = folders.pop("", [])
    grouped = (f"{folder}/{{{','.join(inside)}}}" if inside[1:] else f"{folder}/{inside[0]}"
               for folder, inside in folders.items())  # fmt: skip
    return ", ".join([*own, *grouped])
