"""Scales and shifts networks until their outputs are on both sides of a loss's branches.

After a few updates, a policy's actions and log-deviations are far from their bounds, and all values have one sign.
Therefore half of each loss would never run.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from shared.frameworks.exchange import parameters

# The standard deviation, over a dataset, of a policy's output before its tanh or its bounds. Some actions are then in
# the middle, and some beyond their bounds after noise. Log-deviations pass bounds of -5 and 2.
SPREAD = 1.25
# Only for outputs: log-deviations also pass a lower bound of -20, where a log-probability would lose all its digits
FAR = 30.0
# The range of log-deviations that are parameters, and the range for far outputs
DEVIATIONS, FAR_DEVIATIONS = (-3.0, 3.0), (-25.0, 5.0)


def stretched(
    trainer: Any, run: Callable[[Any], Any], action_dim: int, corner: Callable[[Any], None], spread: float = SPREAD
) -> Any:
    """Copies a trainer so that its policy reaches its bounds and values have both signs; targets get the same moves.

    Args:
        trainer: A PyTorch twin.
        run: Runs every network of a trainer once, on a whole dataset.
        action_dim: A. A layer with A or 2A outputs is a policy's last one, a layer with one output a critic's.
        corner: Moves further numbers of a trainer, in place.
        spread: The standard deviation of the outputs of a policy's last layer.
    """
    trainer = copy.deepcopy(trainer)
    networks = {name: part for name, part in vars(trainer).items() if isinstance(part, nn.Module)}
    for (name, layer), move in _moves(networks, lambda: run(trainer), action_dim, spread).items():
        for part in {name, f"{name}_target"} & networks.keys():
            move(networks[part].get_submodule(layer))
    for network in networks.values():
        for name, value in parameters(network).items():
            if name.endswith("log_std"):
                ends = DEVIATIONS if spread == SPREAD else FAR_DEVIATIONS
                value.data = torch.linspace(*ends, len(value)).to(value.dtype)
    corner(trainer)
    return trainer


def _moves(
    networks: Mapping[str, nn.Module], run: Callable[[], Any], action_dim: int, spread: float
) -> dict[tuple[str, str], Callable[[Any], None]]:
    """Moves for each network's last layer: half of the outputs become negative, and a policy's get the given spread."""
    moves: dict[tuple[str, str], Callable[[Any], None]] = {}

    def measure(key: tuple[str, str], layer: Any, given: Any, output: torch.Tensor) -> None:
        rows = output.reshape(-1, output.shape[-1])
        factor = spread / rows.std(0) if rows.shape[-1] > 1 else torch.ones(1)
        moves[key] = partial(_move, factor=factor, shift=-(factor * rows).median(0).values)

    with ExitStack() as hooks, torch.no_grad():
        for name, network in networks.items():
            for path, layer in network.named_modules():
                if _outputs(layer) in (1, action_dim, 2 * action_dim) and not name.endswith("_target"):
                    hooks.callback(layer.register_forward_hook(partial(measure, (name, path))).remove)
        run()
    return moves


def _outputs(layer: nn.Module) -> int:
    """The number of a linear layer's outputs; 0 for any other module."""
    bias = getattr(layer, "bias", None)
    return bias.shape[-1] if bias is not None and bias.ndim else 0


def _move(layer: Any, factor: torch.Tensor, shift: torch.Tensor) -> None:
    # An ensemble's weights are (E, in, out).
    layer.weight.data = layer.weight.data * (factor[:, None] if layer.weight.ndim == 2 else factor)
    layer.bias.data = layer.bias.data * factor + shift
