"""What every derivation needs: CORL's optimiser, target update and batches, and the comparison at the end."""

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
    """Linear layers with ReLU between them, drawn one after the other; what follows the last."""
    layers = [layer for inputs, outputs in pairwise(widths) for layer in (nn.Linear(inputs, outputs), nn.ReLU())]
    return nn.Sequential(*layers[:-1], *([] if end is None else [end]))


def at_the_weights_of(ours: nn.Module, network: Network) -> Network:
    """A derivation's network with the weights of the twin's; they are as many, of the same shapes."""
    for mine, other in zip(ours.parameters(), network.parameters(), strict=True):
        assert mine.shape == other.shape
        other.data.copy_(mine.data)
    return network


def assert_same_weights(ours: Sequence[nn.Module], networks: Sequence[nn.Module]) -> None:
    """Every parameter of all networks, in their order."""
    for number, (mine, other) in enumerate(zip(ours, networks, strict=True), start=1):
        for a, b in zip(mine.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b), f"network {number}"


def assert_same_actions(found: np.ndarray, expected: Tensor) -> None:
    """What `act` returns, against a derivation's policy."""
    assert torch.equal(torch.as_tensor(found), expected.detach())


def same_draws() -> None:
    """Both sides' generators, set alike before either begins to draw."""
    np.random.seed(5)
    torch.manual_seed(5)


def six_updates(
    twin: Any, config: Any, trainer: Any, dataset: Batch, derived: Callable[[Any], Log], tolerance: float
) -> None:
    """Updates of the twin and of a derivation draw the same numbers, and log the same.

    Args:
        twin: The module.
        config: Its settings.
        trainer: Its state.
        dataset: Tensors.
        derived: From a batch, as `columns_of` gives it, to what an update logs; draws what the update draws.
        tolerance: Of the log.
    """
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = twin.draw_noise(config, ROWS, ACTION_DIM, CPU)
        logs.append(trainer.update(take(dataset, indices), noise))
    state = torch.get_rng_state()
    same_draws()
    for _ in range(UPDATES):
        expected.append(derived(columns_of(dataset, config.batch_size)))
    assert torch.equal(state, torch.get_rng_state())
    assert_same_log(logs, expected, tolerance)
    assert trainer.total_it == UPDATES


def columns_of(dataset: Batch, batch_size: int) -> tuple[Tensor, ...]:
    """A batch as CORL draws it, rewards and done flags (B, 1)."""
    indices = np.random.randint(0, len(dataset.rewards), size=batch_size)
    s, a, r, s2, d = (column[indices] for column in dataset)
    return s, a, r[:, None], s2, d[:, None]


def assert_same_bits(trainer: Any, reference: dict[str, nn.Module | Tensor]) -> None:
    """Every parameter of every part."""
    for name, part in reference.items():
        ours = getattr(trainer, name)
        theirs = list(part.parameters()) if isinstance(part, nn.Module) else [part]
        for mine, other in zip(ours.parameters(), theirs, strict=True):
            assert torch.equal(mine, other), f"{name}: {(mine - other).abs().max():g} apart"


def assert_same_log(ours: Sequence[Log], reference: Sequence[Log], tolerance: float = 0.0) -> None:
    """What each update logs: CORL's names, no more and no fewer, and its values within a relative `tolerance`."""
    for step, (found, expected) in enumerate(zip(ours, reference, strict=True), start=1):
        assert found.keys() == expected.keys(), f"update {step}: {sorted(found.keys() ^ expected.keys())}"
        for name, value in expected.items():
            assert not getattr(found[name], "requires_grad", False), f"update {step}: {name} keeps its graph"
            right = pytest.approx(_number(value), rel=tolerance, abs=tolerance / 100)
            assert _number(found[name]) == right, f"update {step}: {name}"


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)
