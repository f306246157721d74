"""Measures a PyTorch twin on held-out rows, without changing its state. `jax_held_out.py` is the same for JAX."""

import copy
import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shared.frameworks.held_out import (
    UPDATES,
    Outputs,
    averaged,
    drawing,
    flags,
    is_measured,
    late,
    measured,
    outputs,
    spread,
)
from shared.frameworks.torch_checkpoints import generator_states, restore_generators
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_side import mean_metrics, seed_everything


class Measures:
    """Maps a trainer to its losses on held-out rows, and to its values and likelihoods of the actions there.

    The losses are those that the next few updates would report for batches of these rows; a copy makes the updates.
    """

    def __init__(self, rows: Any, device: torch.device) -> None:
        """Moves the rows, a named tuple of columns, to the device."""
        self._rows, self._device = to_device(rows, device), device

    def __call__(self, trainer: Any) -> dict[str, float]:
        """All measurements, by name."""
        module = sys.modules[type(trainer).__module__]
        return self.losses(module, trainer) | self.of_actions(module, trainer)

    @torch.no_grad()
    def of_actions(self, module: ModuleType, trainer: Any) -> dict[str, float]:
        """The mean value of the data's actions, and their mean log-likelihood, if the twin has them."""
        parts = []
        for indices in spread(len(self._rows.rewards)):
            rows = take(self._rows, index_tensor(indices, self._device))
            found = outputs(module, trainer, lambda network: network.forward, rows)
            parts.append(measured(module, Outputs(*map(numbers, found)), numbers(rows.actions)))
        return averaged(parts)

    def losses(self, module: ModuleType, trainer: Any) -> dict[str, float]:
        """The losses under the twin's own names; empty for algorithms whose batches are more than rows."""
        known = {"hp": trainer.hp, "dataset_size": len(self._rows.rewards), "device": self._device}
        if not is_measured(module, trainer.update, self._rows, known):
            return {}
        states, deterministic = generator_states(), torch.are_deterministic_algorithms_enabled()
        try:
            trainer = copy.deepcopy(trainer)
            # The draws below are for an update late in a run. The copy must make such an update during pretraining too.
            trainer.__class__ = late(type(trainer))
            seed_everything(0, deterministic)
            history = []
            for _ in range(UPDATES):
                indices, noise = module.draw_noise(**drawing(module, self._rows, known))
                history.append(trainer.update(take(self._rows, indices), noise, **flags(trainer.update)))
            return mean_metrics(history)
        finally:
            restore_generators(states)


def numbers(found: Any) -> Any:
    """Converts tensors to NumPy arrays, in the same lists and tuples."""
    if isinstance(found, list | tuple):
        return type(found)(map(numbers, found))
    return np.asarray(found.cpu()) if isinstance(found, Tensor) else found
