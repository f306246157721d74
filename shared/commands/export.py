"""`corl-twins export RUN --format onnx`: a run's policy as one file that works without this project."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from shared.commands.common import Parser, check_free
from shared.errors import InputError
from shared.files import write_atomically
from shared.frameworks import policy_files, saved_run
from shared.frameworks.policy_files import (
    PortableGoalPolicy,
    PortablePolicy,
    PortableSampledPolicy,
    PortableSequencePolicy,
)
from shared.frameworks.saved_run import SavedRun
from shared.frameworks.twins import acting

_FORMATS: dict[str, Callable[..., bytes]] = {
    "onnx": policy_files.to_onnx,
    "torchscript": policy_files.to_torchscript,
    "npz": policy_files.to_npz,
}


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `--help` explains it.

    Raises:
        InputError: The command line cannot be used.
    """
    parser = Parser(
        prog="corl-twins export",
        description="Writes a run's policy, including the normalisation of states and the scaling of actions, "
        "for ONNX Runtime, for PyTorch's C++ or for plain NumPy.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a .pt or .msgpack checkpoint")
    parser.add_argument("--format", choices=_FORMATS, required=True, help="kind of file")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write (default: policy.FORMAT next to the run)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there already")
    return parser.parse_args(arguments)


def export(source: SavedRun, format: str) -> bytes:
    """The contents of the exported file.

    Raises:
        InputError: The checkpoint cannot be used, a package is missing, or the format does not support this policy.
    """
    policy = portable_policy(source)
    inputs = policy_files.example_inputs(policy, *source.sizes[:2])
    return _FORMATS[format](policy, inputs, metadata(source, policy, inputs))


def portable_policy(source: SavedRun) -> PortablePolicy:
    """The run's policy in its PyTorch form, whichever framework trained it.

    Raises:
        InputError: The checkpoint cannot be used.
    """
    source.check_acts()
    trainer, statistics, units = source.trainer(), source.statistics(), source.units
    if source.is_prompted:
        scale = source.config.reward_scale
        return PortableSequencePolicy(source.torch.policy, acting(trainer), *statistics, units, reward_scale=scale)
    if source.draw is not None:
        noise = source.draw(np.random.default_rng(0))
        return PortableSampledPolicy(source.torch.policy, acting(trainer), *statistics, units, example_noise=noise)
    kind = PortableGoalPolicy if source.takes_goals else PortablePolicy
    return kind(source.torch.policy, acting(trainer), *statistics, units)


def metadata(source: SavedRun, policy: PortablePolicy, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """The description inside an exported file: its data and score, and its inputs and outputs."""
    (mean, std), (action_mean, action_std) = source.statistics(), source.action_statistics()
    result = source.result
    return {
        "algorithm": source.algorithm,
        "framework": source.framework,
        "dataset": source.config.env,
        "seed": source.config.seed,
        "env": source.env_id,
        "metric": result.get("metric"),
        "score": result.get("score"),
        "state_mean": mean.tolist(),
        "state_std": std.tolist(),
        "action_mean": action_mean.tolist(),
        "action_std": action_std.tolist(),
        "max_action": source.sizes[2],
        **({} if (box := source.box) is None else {"action_low": box.low.tolist(), "action_high": box.high.tolist()}),
        "inputs": {name: _described(tensor) for name, tensor in inputs.items()},
        "outputs": {policy.output: _described(policy(**inputs))},
    }


def _described(example: Tensor) -> dict[str, Any]:
    """The shape and the type of a tensor; the first axis, the number of episodes, is dynamic."""
    return {"shape": ["episodes", *example.shape[1:]], "type": str(example.dtype).removeprefix("torch.")}


def main(arguments: Sequence[str]) -> None:
    """Runs the command.

    Raises:
        InputError: The command line or the run cannot be used.
    """
    options = parse_arguments(arguments)
    path = saved_run.find(options.run)
    output = options.output or path.with_name(f"policy.{options.format}")
    check_free(output, options.overwrite)
    try:
        write_atomically(output, export(SavedRun.open(path), options.format))
    except OSError as error:
        raise InputError(f"cannot write {output} ({error.strerror}): set --output") from error
    print(output)
