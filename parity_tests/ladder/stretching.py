"""Networks moved until their outputs lie on both sides of what a loss decides on.

After a few updates from fresh, a policy's actions are far from their bounds, and its deviations are far from theirs.
All values have one sign. So half of each loss would never be run.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from shared.frameworks.exchange import parameters

# Standard deviation, over a dataset, of what a policy gives before its tanh or its bounds. Some actions then lie in the
# middle, and some beyond their bounds after noise. Log-deviations pass bounds of -5 and 2.
SPREAD = 1.25
# Of the outputs alone: log-deviations pass a lower bound of -20 too, where a log-probability would lose all its digits
FAR = 30.0
# Log-deviations that are parameters lie between these, or between those far ones
DEVIATIONS, FAR_DEVIATIONS = (-3.0, 3.0), (-25.0, 5.0)


def stretched(
    trainer: Any, run: Callable[[Any], Any], action_dim: int, corner: Callable[[Any], None], spread: float = SPREAD
) -> Any:
    """A trainer's copy whose policy reaches its bounds and whose values have both signs; targets are moved alike.

    Args:
        trainer: A torch twin.
        run: Runs every network of a trainer once, on a whole dataset.
        action_dim: A. A layer with A or 2A outputs is a policy's last one, one with a single output a critic's.
        corner: Moves further numbers of a trainer, in place.
        spread: The standard deviation of what a policy's last layer gives.
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
    """By network and last layer, what moves its outputs: half of each is negative, a policy's are as wide as asked."""
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
