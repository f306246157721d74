"""The online phase of the PyTorch twins of `finetune/`. `shared/frameworks/jax_online.py` is its counterpart.

A run has two phases: updates on a dataset, `switch` of them, then `online_iterations` steps of the environment with an
update each. What a twin of this family provides and calls, in both frameworks:

- `TrainConfig` inherits `FinetuneConfig`, so that a run's length is the sum of both phases (`max_timesteps`). One with
  further updates before them, of a VAE say, overrides `switch`: they are updates of the run like all others.
- `task = load_task(...)` also takes `step_rewards`: what is done to the reward of a step, as to those of the dataset.
- `experience = training_environment(config, task)` steps the environment. It normalises states by the dataset's
  statistics and keeps every step. Its rows hold what is learnt from, its `episodes` what training episodes earned.
- `restore(..., go_on=experience.go_on_from)` brings a resumed run back into the episode that it was cut in.
- `draw_exploration` draws what one step in the environment takes, as `draw_noise` draws what an update takes.
  `explore`, of the trainer or the state, makes the action of it. Both stand on the ladder.
- `run.log(step, metrics, experience.episodes)` writes the episodes since the last evaluation, too. `run.intervals()`
  ends an interval at the switch.

In PyTorch a `for` over updates begins with a step of the environment once `step > config.switch`. It pushes
the step's row into a `Ring`, and draws the batch from `ring.size` rows of `ring.rows`. A twin with two buffers keeps
the dataset beside a ring that begins empty, and `take_both` makes its batches.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from shared.frameworks.torch_data import store, take
from shared.runs.facts import stored_rows


class Ring:
    """Transitions on the device. When it is full, the oldest are overwritten, beginning with the dataset's.

    Attributes:
        rows: A named tuple of tensors with room for `capacity` rows; those beyond `size` hold nothing.
        size: Rows that are there.
    """

    def __init__(self, dataset: Any, capacity: int, keeps_dataset: bool = True) -> None:
        """Begins with the dataset, or empty.

        Args:
            dataset: A named tuple of tensors, (N, ...) each; only its kind, shapes and types if it is not kept.
            capacity: Rows at most; where the dataset is kept, N or more.
            keeps_dataset: Whether the dataset's rows come first.
        """
        columns = (torch.zeros(capacity, *column.shape[1:]).to(column) for column in dataset)
        self.rows = type(dataset)(*columns)
        self.size = self._pointer = 0
        if keeps_dataset:
            for whole, column in zip(self.rows, dataset, strict=True):
                whole[: len(column)] = column
            self.size = len(dataset[0])
            self._pointer = self.size % capacity

    def push(self, columns: Any) -> None:
        """Stores NumPy columns (n, ...), the oldest row first."""
        capacity = len(self.rows[0])
        for row in range(len(columns[0])):
            store(self.rows, type(self.rows)(*(column[row : row + 1] for column in columns)), self._pointer)
            self._pointer = (self._pointer + 1) % capacity
            self.size = min(self.size + 1, capacity)

    def extend(self, columns: Any) -> None:
        """Stores tensors (n, ...) on the ring's device, n not above its capacity, the oldest row first."""
        capacity, number = len(self.rows[0]), len(columns[0])
        places = (self._pointer + torch.arange(number, device=columns[0].device)) % capacity
        for whole, column in zip(self.rows, columns, strict=True):
            whole[places] = column
        self._pointer = (self._pointer + number) % capacity
        self.size = min(self.size + number, capacity)

    def content(self) -> dict[str, Any]:
        """The contents for a checkpoint: the rows side by side, (size, W), and the place of the next one."""
        columns = [
            column[: self.size].flatten(1) if column.ndim > 1 else column[: self.size, None] for column in self.rows
        ]
        return {"rows": torch.cat(columns, dim=1).cpu(), "pointer": self._pointer}

    def go_on_from(self, path: str, content: Mapping[str, Any]) -> None:
        """Takes over what a checkpoint holds under `synthetic`.

        Raises:
            InputError: It holds nothing like that, or does not fit.
        """
        capacity, width = len(self.rows[0]), sum(column[0].numel() for column in self.rows)
        rows, self._pointer = stored_rows(content.get("synthetic"), capacity, width, path)
        self.size = len(rows)
        parts = torch.as_tensor(rows).split([column[0].numel() for column in self.rows], dim=1)
        for whole, part in zip(self.rows, parts, strict=True):
            whole[: self.size] = part.reshape(self.size, *whole.shape[1:]).to(whole)


def take_both(dataset: Any, experience: Any, indices: Tensor, offline: int) -> Any:
    """A batch of two buffers: `offline` of the indices (B,) are rows of the dataset; later ones continue its count."""
    parts = take(dataset, indices[:offline]), take(experience, indices[offline:] - len(dataset[0]))
    return type(dataset)(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def take_either(dataset: Any, experience: Any, indices: Tensor) -> Any:
    """A batch of two buffers in any order: indices (B,) below the dataset's size are of it, others count on from it."""
    size = len(dataset[0])
    old, new = take(dataset, indices.clamp(max=size - 1)), take(experience, (indices - size).clamp(min=0))

    def chosen(old: Tensor, new: Tensor) -> Tensor:
        return torch.where((indices < size).reshape(-1, *[1] * (old.ndim - 1)), old, new)

    return type(dataset)(*map(chosen, old, new))


def room(config: Any, rows: int) -> int:
    """How many rows a ring needs that begins with so many: no more than the run ever stores, nor than `buffer_size`."""
    return min(config.buffer_size, rows + config.online_iterations)
