"""A replay buffer in PyTorch, which is modified in place."""

import torch
from torch import Tensor


class Ring:
    """At most `capacity` rows (W,): when it is full, new rows overwrite the oldest."""

    def __init__(self, capacity: int, width: int) -> None:
        self.rows = torch.zeros(capacity, width)
        self.size = self.pointer = 0

    def push(self, rows: Tensor) -> None:
        """Stores rows (n, W), the oldest first."""
        for row in rows:
            self.rows[self.pointer] = row
            self.size = min(self.size + 1, len(self.rows))
            self.pointer = (self.pointer + 1) % len(self.rows)

    def sample(self, batch_size: int) -> Tensor:
        """Rows (B, W), each with the same probability, drawn with replacement."""
        return self.rows[torch.randint(self.size, (batch_size,))]
