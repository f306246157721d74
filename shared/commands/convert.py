"""`corl-twins convert runs/x/checkpoint --to jax`: converts a checkpoint of either twin to the other framework."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from shared.commands.common import Parser, check_free
from shared.errors import InputError
from shared.frameworks import jax_checkpoints, saved_run, torch_side
from shared.frameworks.saved_run import SUFFIXES, SavedRun


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `--help` explains it.

    Raises:
        InputError: The command line cannot be used.
    """
    parser = Parser(
        prog="corl-twins convert",
        description="Converts a checkpoint from one framework to the other: weights, targets, temperatures, the "
        "optimisers' moments, schedules and step counts. Load it with --load_model in the other twin.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or a .pt or .msgpack file")
    parser.add_argument("--to", choices=SUFFIXES, required=True, help="framework of the file to write")
    parser.add_argument("--output", type=Path, metavar="FILE", help="file to write (default: next to the checkpoint)")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there already")
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="algorithm of a file that doesn't name it, such as CORL's; `corl-twins train --help` lists the names",
    )
    parser.add_argument(
        "--config_path", type=Path, metavar="FILE", help="the run's settings (default: config.yaml next to the file)"
    )
    return parser.parse_args(arguments)


def convert(source: SavedRun, framework: str, output: Path) -> None:
    """Writes a checkpoint for the other framework.

    Raises:
        InputError: The checkpoint cannot be used, or the file cannot be written.
    """
    if framework == "jax":
        state, total_it = source.state()
        jax_checkpoints.save_checkpoint(output, source.algorithm, state, total_it, **source.facts)
    else:
        # PyTorch's checkpoints contain the states of random generators: here, the initial ones.
        torch_side.seed_everything(source.config.seed)
        source.torch.save(source.trainer(), output, **source.facts)


def main(arguments: Sequence[str]) -> None:
    """Runs the command.

    Raises:
        InputError: The command line or the checkpoint cannot be used.
    """
    options = parse_arguments(arguments)
    other = "jax" if options.to == "torch" else "torch"
    path = saved_run.find(options.checkpoint, other)
    source = SavedRun.open(path, options.algorithm, options.config_path)
    if source.framework == options.to:
        raise InputError(f"{path} is a checkpoint of {options.to} already: name one of {other}")
    output = options.output or path.with_suffix(SUFFIXES[options.to])
    if output.suffix != SUFFIXES[options.to]:
        raise InputError(f"--output {output} is to be a checkpoint of {options.to}: end it in {SUFFIXES[options.to]}")
    check_free(output, options.overwrite)
    try:
        convert(source, options.to, output)
    except OSError as error:
        raise InputError(f"cannot write {output} ({error.strerror}): set --output") from error
    print(output)
