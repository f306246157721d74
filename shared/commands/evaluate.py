"""`corl-twins evaluate RUN --method fqe`: estimates the value of a run's policy from a dataset alone."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shared.commands.common import Parser
from shared.envs.registry import is_registered
from shared.errors import InputError
from shared.frameworks import saved_run
from shared.frameworks.saved_run import SavedRun
from shared.frameworks.twins import FRAMEWORKS, algorithms, load_twin
from shared.interrupts import ended_at_once
from shared.names import nearest
from shared.runs.configs import cli

_FAMILY = "evaluation/"
# The measures in the table's order, by their key in a result
_MEASURES = {
    "final": "initial-state value",
    "final_soft_opc": "soft off-policy classification",
    "final_td_error": "TD error",
    "final_discounted_advantage": "the data's discounted advantage",
    "final_average_value": "average value",
    "final_action_difference": "distance to the data's actions",
}


def methods() -> list[str]:
    """The algorithms that can evaluate a policy."""
    return [name.removeprefix(_FAMILY) for name in algorithms("torch") if name.startswith(_FAMILY)]


def parse_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line; unknown arguments are settings of the method. `--help` explains it.

    Raises:
        InputError: The command line cannot be used.
    """
    parser = Parser(
        prog="corl-twins evaluate",
        usage="%(prog)s RUN --method METHOD [--framework FRAMEWORK] [--env DATASET] [--setting VALUE ...]",
        description="Judges a run's policy by a dataset, and prints what it is worth. `corl-twins train FRAMEWORK "
        "evaluation/METHOD --help` lists the settings.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a .pt or .msgpack checkpoint")
    parser.add_argument("--method", required=True, metavar="METHOD", help=f"one of {', '.join(methods())}")
    parser.add_argument("--framework", choices=FRAMEWORKS, default="jax", help="which twin judges (default: jax)")
    parser.add_argument("--env", metavar="DATASET", help="what it judges by (default: what the run learnt from)")
    return parser.parse_known_args(arguments)


def dataset_of(source: SavedRun) -> str:
    """The dataset from which a run learned.

    Raises:
        InputError: The run collected its own data.
    """
    if is_registered(source.config.env):
        raise InputError(f"{source.path} learned in {source.config.env}, not from a dataset: name one with --env")
    return source.config.env


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """A table of the measures, with a column for each seed."""
    evaluation = results[0]["evaluation"]
    episodes, threshold = evaluation["episodes"], evaluation["return_threshold"]
    lines = [
        f"policy of {evaluation['policy']['path']} by {evaluation['dataset']}",
        f"{episodes} episodes, of which those with a return of {threshold:.4g} or more succeed",
    ]
    several = len(results) > 1
    if several:
        lines.append(_line("seed", [*(str(result["seed"]) for result in results), "mean"]))
    for name, words in _MEASURES.items():
        values = [result[name] for result in results]
        values += [np.mean(values)] if several else []
        lines.append(_line(words, [f"{value:.4g}" for value in values]))
    return "\n".join(lines)


def _line(words: str, cells: Sequence[str]) -> str:
    return f"{words:<34}" + "".join(f"{cell:>10}" for cell in cells)


def main(arguments: Sequence[str]) -> None:
    """Runs the command.

    Raises:
        InputError: The command line, the run or the dataset cannot be used.
    """
    options, settings = parse_arguments(arguments)
    if options.method not in methods():
        raise InputError(f"unknown method {options.method!r}; {nearest(options.method, methods())}")
    path = saved_run.find(options.run)
    dataset = options.env or dataset_of(SavedRun.open(path))
    name = f"{_FAMILY}{options.method}"
    with ended_at_once():
        twin = load_twin(options.framework, name)
    given = ["--policy", str(path), "--env", dataset, *settings]
    runs = cli(twin.train, twin.TrainConfig, name, given, prog=f"corl-twins train {options.framework} {name}")
    print(table([run.result for run in runs]))
