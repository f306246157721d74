"""A JAX twin's losses on held-out rows, without a trace in its state. `torch_held_out.py` is the same for PyTorch."""

import sys
from functools import cache
from types import ModuleType
from typing import Any

import jax
from jax import Array

from shared.frameworks.held_out import UPDATES, drawing, flags, is_measured
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_side import mean_metrics


class Losses:
    """From a state to what its next few updates would report on batches of held-out rows."""

    def __init__(self, rows: Any) -> None:
        """Takes the rows, a named tuple of columns, to the device."""
        self._rows, self._packed = rows, to_device(rows)

    def __call__(self, state: Any) -> dict[str, float]:
        """By name; nothing of an algorithm whose batches are more than rows."""
        module = sys.modules[type(state).__module__]
        known = {"key": jax.random.key(0), "step": 0, "hp": state.hp, "dataset_size": len(self._packed)}
        if not is_measured(module, state.update, self._rows, known):
            return {}
        history = []
        for step in range(UPDATES):
            state, metrics = _program(module)(state, self._packed, step, tuple(drawing(module, self._rows, {}).items()))
            history.append(metrics)
        return {name: float(value) for name, value in mean_metrics(history).items()}


@cache
def _program(module: ModuleType) -> Any:
    """An update on held-out rows, compiled; nothing of the state is used up."""

    def update(state: Any, rows: PackedDataset, step: Array, sizes: tuple[tuple[str, Any], ...]) -> Any:
        known = {"key": jax.random.key(0), "step": step, "hp": state.hp, "dataset_size": len(rows)}
        indices, noise = module.draw_noise(**{**dict(sizes), **known})
        return state.update(take(rows, indices), noise, **flags(state.update))

    return jax.jit(update, static_argnames="sizes")
