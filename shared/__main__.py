"""`corl-twins COMMAND ...`, or `python -m shared COMMAND ...`: imports the module of a command and runs it.

A module is only imported when its command is called, so that the help appears at once. Modules are only known by name,
because some are in layers above `shared`, which this file must not depend on.
"""

import importlib
import sys
from collections.abc import Sequence

from shared.commands.common import ended
from shared.errors import InputError
from shared.interrupts import ended_at_once
from shared.names import nearest

# Each command's module, and what it does
COMMANDS = {
    "train": ("shared.commands.train", "train an algorithm, in PyTorch or in JAX"),
    "sweep": ("shared.commands.sweep", "train many algorithms on many datasets, and finish what is missing"),
    "tune": ("shared.commands.tune", "search for the settings with which an algorithm does best"),
    "plot": ("shared.commands.plot", "draw the learning curves of runs, with statistics over seeds"),
    "report": ("shared.commands.report", "write a page on many runs, with tables and charts"),
    "play": ("shared.commands.play", "run a trained policy in its environment, and film it"),
    "evaluate": ("shared.commands.evaluate", "estimate a trained policy's value from data, without its environment"),
    "export": ("shared.commands.export", "write a run's policy for ONNX Runtime, TorchScript or NumPy"),
    "convert": ("shared.commands.convert", "turn a checkpoint of one framework into one of the other"),
    "datasets": ("shared.commands.datasets", "list, describe, verify and download datasets"),
    "collect": ("shared.commands.collect", "make a dataset as D4RL's were made, with an agent trained here"),
    "check": ("port_checker.process", "check a JAX port of your own against the PyTorch twin"),
    "parity": ("port_checker.parity", "check a PyTorch and a JAX file of your own against each other"),
    "mutants": ("port_checker.mutants", "plant small mistakes in a pair of your own: does anything notice?"),
    "new": ("port_checker.new", "start a pair of your own from one of ours"),
    "tables": ("benchmarks.report", "print the measured tables: speed, scores, and how alike the twins are"),
}


def explained() -> str:
    """The help: a line for every command."""
    return "\n".join(
        [
            "usage: corl-twins COMMAND ...",
            "",
            "Offline reinforcement learning, every algorithm twice: in PyTorch, faithful to CORL, and in JAX, fast.",
            "",
            "commands:",
            *(f"  {name:<10}{does}" for name, (_, does) in COMMANDS.items()),
            "",
            "`corl-twins COMMAND --help` explains a command; `corl-twins train jax iql` is a first run.",
        ]
    )


def run(arguments: Sequence[str]) -> int | None:
    """Runs the command that the first argument names, with the other arguments; returns its exit status, None for 0.

    Raises:
        InputError: There is no such command, or its arguments cannot be used.
    """
    if not arguments:
        raise InputError("name a command; --help lists them")
    name, *others = arguments
    if name in ("-h", "--help"):
        print(explained())
        return 0
    if name not in COMMANDS:
        raise InputError(f"unknown command {name!r}; {nearest(name, COMMANDS)}; --help lists them all")
    with ended_at_once():
        module = importlib.import_module(COMMANDS[name][0])
    return module.main(others)


def main(arguments: Sequence[str]) -> int:
    """Runs a command line; returns its exit status, which is 2 after one line on stderr if the input cannot be used."""
    return ended(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
