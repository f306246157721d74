"""Measures a JAX twin on held-out rows, without changing its state. `torch_held_out.py` is the same for PyTorch."""

import sys
from functools import cache
from types import ModuleType
from typing import Any

import jax
from jax import Array

from shared.frameworks.held_out import (
    UPDATES,
    Outputs,
    averaged,
    drawing,
    flags,
    is_measured,
    measured,
    outputs,
    spread,
)
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_side import mean_metrics


class Measures:
    """Maps a train state to its losses on held-out rows, and to its values and likelihoods of the actions there.

    The losses are those that the next few updates would report for batches of these rows.
    """

    def __init__(self, rows: Any) -> None:
        """Moves the rows, a named tuple of columns, to the device."""
        self._rows, self._packed = rows, to_device(rows)

    def __call__(self, state: Any) -> dict[str, float]:
        """All measurements, by name."""
        module = sys.modules[type(state).__module__]
        return self.losses(module, state) | self.of_actions(module, state)

    def of_actions(self, module: ModuleType, state: Any) -> dict[str, float]:
        """The mean value of the data's actions, and their mean log-likelihood, if the twin has them."""
        parts = []
        for indices in spread(len(self._packed)):
            found, actions = jax.device_get(_outputs(module)(state, self._packed, indices))
            parts.append(measured(module, found, actions))
        return averaged(parts)

    def losses(self, module: ModuleType, state: Any) -> dict[str, float]:
        """The losses under the twin's own names; empty for algorithms whose batches are more than rows."""
        known = {"key": jax.random.key(0), "step": 0, "hp": state.hp, "dataset_size": len(self._packed)}
        if not is_measured(module, state.update, self._rows, known):
            return {}
        history = []
        for step in range(UPDATES):
            state, metrics = _program(module)(state, self._packed, step, tuple(drawing(module, self._rows, {}).items()))
            history.append(metrics)
        return {name: float(value) for name, value in mean_metrics(history).items()}


@cache
def _outputs(module: ModuleType) -> Any:
    """A compiled function that returns the networks' outputs for some rows, and the rows' actions."""

    def found(state: Any, rows: PackedDataset, indices: Array) -> tuple[Outputs, Array]:
        chosen = take(rows, indices)
        return outputs(module, state, lambda network: network.module.__call__, chosen), chosen.actions

    return jax.jit(found)


@cache
def _program(module: ModuleType) -> Any:
    """A compiled update on held-out rows; it does not donate the state."""

    def update(state: Any, rows: PackedDataset, step: Array, sizes: tuple[tuple[str, Any], ...]) -> Any:
        known = {"key": jax.random.key(0), "step": step, "hp": state.hp, "dataset_size": len(rows)}
        indices, noise = module.draw_noise(**{**dict(sizes), **known})
        return state.update(take(rows, indices), noise, **flags(state.update))

    return jax.jit(update, static_argnames="sizes")
