"""The online phase of the PyTorch twins of `finetune/`. `shared/frameworks/jax_online.py` is its counterpart.

A run has two phases: `switch` updates on a dataset, then `online_iterations` environment steps with an update each. A
twin of this family provides and calls these in both frameworks:

- `TrainConfig` inherits `FinetuneConfig`, so that a run's length is the sum of both phases (`max_timesteps`). A twin
  with further updates before them, such as a VAE's, overrides `switch`, because these count like all others.
- `task = load_task(...)` also provides `step_reward`, which changes the reward of a step as in the dataset.
- `experience = training_environment(config, task)` steps the environment. It normalises states by the dataset's
  statistics and stores every step. Its transitions are for learning, and its `episodes` have training returns.
- `restore(..., go_on=experience.go_on_from)` continues the episode in which a resumed run was stopped.
- `draw_exploration` makes the random draws of an environment step, as `draw_noise` does for an update. The trainer's or
  state's `explore` computes the action from them, or a chunk of actions. The parity checks cover both.
- A twin whose policy chooses chunks asks it when `experience.queue` is empty. It stores the answer by
  `experience.choose`, takes each step by `experience.play`, and saves the queue in its checkpoints.
- `run.log(step, metrics, experience.episodes)` also writes the episodes since the last evaluation. `run.intervals()`
  ends an interval at the switch.

In PyTorch, once `step > config.switch`, each iteration over updates begins with an environment step. It pushes the
step's row into a `Ring`, and draws the batch from the first `ring.size` rows of `ring.rows`. A twin with two buffers
keeps the dataset and a ring that starts empty, and `take_both` makes its batches.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from shared.frameworks.torch_data import store, take
from shared.runs.facts import stored_rows


class Ring:
    """A replay buffer on the device. When it is full, new rows overwrite the oldest, beginning with the dataset's.

    Attributes:
        rows: A named tuple of tensors with `capacity` rows; rows from `size` on are unused.
        size: Number of rows stored.
        pointer: Position of the next row; once the ring is full, that of the oldest.
    """

    def __init__(self, dataset: Any, capacity: int, keeps_dataset: bool = True) -> None:
        """Starts with the dataset, or empty.

        Args:
            dataset: A named tuple of tensors, (N, ...) each; only its type, shapes and dtypes are used if it is not
                kept.
            capacity: The most rows; at least N if the dataset is kept.
            keeps_dataset: Whether to start with the dataset's rows.
        """
        columns = (torch.zeros(capacity, *column.shape[1:]).to(column) for column in dataset)
        self.rows = type(dataset)(*columns)
        self.size = self.pointer = 0
        if keeps_dataset:
            for whole, column in zip(self.rows, dataset, strict=True):
                whole[: len(column)] = column
            self.size = len(dataset[0])
            self.pointer = self.size % capacity

    def push(self, columns: Any) -> None:
        """Stores NumPy columns (n, ...), the oldest row first."""
        capacity = len(self.rows[0])
        for row in range(len(columns[0])):
            store(self.rows, type(self.rows)(*(column[row : row + 1] for column in columns)), self.pointer)
            self.pointer = (self.pointer + 1) % capacity
            self.size = min(self.size + 1, capacity)

    def extend(self, columns: Any) -> None:
        """Stores at most `capacity` rows of tensors (n, ...) on the ring's device, the oldest first."""
        capacity, number = len(self.rows[0]), len(columns[0])
        places = (self.pointer + torch.arange(number, device=columns[0].device)) % capacity
        for whole, column in zip(self.rows, columns, strict=True):
            whole[places] = column
        self.pointer = (self.pointer + number) % capacity
        self.size = min(self.size + number, capacity)

    def content(self) -> dict[str, Any]:
        """The contents for a checkpoint: the rows with their columns side by side, (size, W), and the next position."""
        columns = [
            column[: self.size].flatten(1) if column.ndim > 1 else column[: self.size, None] for column in self.rows
        ]
        return {"rows": torch.cat(columns, dim=1).cpu(), "pointer": self.pointer}

    def go_on_from(self, path: str, content: Mapping[str, Any]) -> None:
        """Restores the rows that a checkpoint stores under `synthetic`.

        Raises:
            InputError: The entry is missing, or does not fit.
        """
        capacity, width = len(self.rows[0]), sum(column[0].numel() for column in self.rows)
        rows, self.pointer = stored_rows(content.get("synthetic"), capacity, width, path)
        self.size = len(rows)
        parts = torch.as_tensor(rows).split([column[0].numel() for column in self.rows], dim=1)
        for whole, part in zip(self.rows, parts, strict=True):
            whole[: self.size] = part.reshape(self.size, *whole.shape[1:]).to(whole)


def take_both(dataset: Any, experience: Any, indices: Tensor, offline: int) -> Any:
    """A batch from two buffers: the first `offline` indices (B,) are dataset rows; later ones continue their count."""
    parts = take(dataset, indices[:offline]), take(experience, indices[offline:] - len(dataset[0]))
    return type(dataset)(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def take_either(dataset: Any, experience: Any, indices: Tensor) -> Any:
    """A batch from two buffers in any order: indices (B,) from the dataset's size on are rows of the ring."""
    size = len(dataset[0])
    old, new = take(dataset, indices.clamp(max=size - 1)), take(experience, (indices - size).clamp(min=0))

    def chosen(old: Tensor, new: Tensor) -> Tensor:
        return torch.where((indices < size).reshape(-1, *[1] * (old.ndim - 1)), old, new)

    return type(dataset)(*map(chosen, old, new))


def room(config: Any, rows: int) -> int:
    """The capacity of a ring that starts with `rows` rows: as many as the run will store, at most `buffer_size`."""
    return min(config.buffer_size, rows + config.online_iterations)
