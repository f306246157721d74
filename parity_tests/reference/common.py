"""Helpers for all derivations: CORL's optimiser, target update and batches, and the final comparisons."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shared.data.transitions import Batch
from shared.frameworks.torch_data import take

STATE_DIM, ACTION_DIM, ROWS, UPDATES = 17, 6, 3000, 6
CPU = torch.device("cpu")
Network = TypeVar("Network", bound=nn.Module)
Log = Mapping[str, Any]


def adam(parameters: Any, lr: float) -> torch.optim.Adam:
    """CORL's optimiser."""
    return torch.optim.Adam(parameters, lr=lr)


def polyak(target: nn.Module, source: nn.Module, tau: float) -> None:
    """CORL's target update."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1 - tau) * old.data + tau * new.data)


def mlp(*widths: int, end: nn.Module | None = None) -> nn.Sequential:
    """Linear layers with ReLU between them, drawn in order, and `end` after the last one."""
    layers = [layer for inputs, outputs in pairwise(widths) for layer in (nn.Linear(inputs, outputs), nn.ReLU())]
    return nn.Sequential(*layers[:-1], *([] if end is None else [end]))


def at_the_weights_of(ours: nn.Module, network: Network) -> Network:
    """Copies the twin's weights to a derivation's network with the same shapes."""
    for mine, other in zip(ours.parameters(), network.parameters(), strict=True):
        assert mine.shape == other.shape
        other.data.copy_(mine.data)
    return network


def assert_same_weights(ours: Sequence[nn.Module], networks: Sequence[nn.Module]) -> None:
    """Checks that all parameters of all networks are equal, in order."""
    for number, (mine, other) in enumerate(zip(ours, networks, strict=True), start=1):
        for a, b in zip(mine.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b), f"network {number}"


def assert_same_actions(found: np.ndarray, expected: Tensor) -> None:
    """Checks the result of `act` against a derivation's policy."""
    assert torch.equal(torch.as_tensor(found), expected.detach())


def same_draws() -> None:
    """Seeds the generators before each side draws, so that both draw the same."""
    np.random.seed(5)
    torch.manual_seed(5)


def six_updates(
    twin: Any,
    config: Any,
    trainer: Any,
    dataset: Batch,
    derived: Callable[[Any], Log],
    tolerance: float = 0.0,
    phase: Callable[[], tuple] = tuple,
) -> None:
    """Checks that updates of the twin and of a derivation draw the same numbers, and log the same.

    Args:
        twin: The module.
        config: Its settings.
        trainer: Its state.
        dataset: Tensors.
        derived: Makes an update on a batch, as `columns_of` gives it, with its own draws, and returns its log.
        tolerance: The relative tolerance for the log.
        phase: Returns the last arguments of the twin's draws, if these depend on the trainer's phase.
    """
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = twin.draw_noise(config, ROWS, ACTION_DIM, CPU, *phase())
        logs.append(trainer.update(take(dataset, indices), noise))
    state = torch.get_rng_state()
    same_draws()
    for _ in range(UPDATES):
        expected.append(derived(columns_of(dataset, config.batch_size)))
    assert torch.equal(state, torch.get_rng_state())
    assert_same_log(logs, expected, tolerance)
    assert trainer.total_it == UPDATES


def columns_of(dataset: Batch, batch_size: int) -> tuple[Tensor, ...]:
    """A batch drawn as in CORL, with rewards and done flags (B, 1)."""
    indices = np.random.randint(0, len(dataset.rewards), size=batch_size)
    s, a, r, s2, d = (column[indices] for column in dataset)
    return s, a, r[:, None], s2, d[:, None]


def assert_same_bits(trainer: Any, reference: dict[str, nn.Module | Tensor]) -> None:
    """Checks that all parameters of all parts are equal."""
    for name, part in reference.items():
        ours = getattr(trainer, name)
        theirs = list(part.parameters()) if isinstance(part, nn.Module) else [part]
        for mine, other in zip(ours.parameters(), theirs, strict=True):
            assert torch.equal(mine, other), f"{name}: {(mine - other).abs().max():g} apart"


def assert_same_log(ours: Sequence[Log], reference: Sequence[Log], tolerance: float = 0.0) -> None:
    """Checks the log of each update: exactly CORL's names, and its values within a relative `tolerance`."""
    for step, (found, expected) in enumerate(zip(ours, reference, strict=True), start=1):
        assert found.keys() == expected.keys(), f"update {step}: {sorted(found.keys() ^ expected.keys())}"
        for name, value in expected.items():
            assert not getattr(found[name], "requires_grad", False), f"update {step}: {name} keeps its graph"
            right = pytest.approx(_number(value), rel=tolerance, abs=tolerance / 100)
            assert _number(found[name]) == right, f"update {step}: {name}"


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)
