"""A PyTorch twin's losses on held-out rows, without a trace in its state. `jax_held_out.py` is the same for JAX."""

import copy
import sys
from typing import Any

import torch

from shared.frameworks.held_out import UPDATES, drawing, flags, is_measured
from shared.frameworks.torch_checkpoints import generator_states, restore_generators
from shared.frameworks.torch_data import take, to_device
from shared.frameworks.torch_side import mean_metrics, seed_everything


class Losses:
    """From a trainer to what its next few updates would report on batches of held-out rows; a copy makes them."""

    def __init__(self, rows: Any, device: torch.device) -> None:
        """Takes the rows, a named tuple of columns, to the device."""
        self._rows, self._device = to_device(rows, device), device

    def __call__(self, trainer: Any) -> dict[str, float]:
        """By name; nothing of an algorithm whose batches are more than rows."""
        module = sys.modules[type(trainer).__module__]
        known = {"hp": trainer.hp, "dataset_size": len(self._rows.rewards), "device": self._device}
        if not is_measured(module, trainer.update, self._rows, known):
            return {}
        states, deterministic = generator_states(), torch.are_deterministic_algorithms_enabled()
        try:
            trainer = copy.deepcopy(trainer)
            seed_everything(0, deterministic)
            history = []
            for _ in range(UPDATES):
                indices, noise = module.draw_noise(**drawing(module, self._rows, known))
                history.append(trainer.update(take(self._rows, indices), noise, **flags(trainer.update)))
            return mean_metrics(history)
        finally:
            restore_generators(states)
