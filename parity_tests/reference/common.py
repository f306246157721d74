"""What every derivation needs: CORL's optimiser, target update and batches, and the comparison at the end."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shared.data.transitions import Batch

STATE_DIM, ACTION_DIM, ROWS, UPDATES = 17, 6, 3000, 6
CPU = torch.device("cpu")


def adam(parameters: Any, lr: float) -> torch.optim.Adam:
    """CORL's optimiser."""
    return torch.optim.Adam(parameters, lr=lr)


def polyak(target: nn.Module, source: nn.Module, tau: float) -> None:
    """CORL's target update."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1 - tau) * old.data + tau * new.data)


def same_draws() -> None:
    """Both sides' generators, set alike before either begins to draw."""
    np.random.seed(5)
    torch.manual_seed(5)


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


Log = Mapping[str, Any]


def assert_same_log(ours: Sequence[Log], reference: Sequence[Log], tolerance: float = 0.0) -> None:
    """What each update logs: CORL's names, no more and no fewer, and its values within a relative `tolerance`."""
    for step, (found, expected) in enumerate(zip(ours, reference, strict=True), start=1):
        assert found.keys() == expected.keys(), f"update {step}: {sorted(found.keys() ^ expected.keys())}"
        for name, value in expected.items():
            right = pytest.approx(_number(value), rel=tolerance, abs=tolerance / 100)
            assert _number(found[name]) == right, f"update {step}: {name}"


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)
