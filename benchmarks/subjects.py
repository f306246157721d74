"""The subject of benchmarks: an algorithm under CORL's default settings, on rows of a locomotion task's size."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.envs.spaces import Shape, shape_of

# The size of HalfCheetah's and Walker2d's states and actions; CORL's defaults give the rest.
STATE_DIM, ACTION_DIM, ROWS = 17, 6, 100_000


def in_a_block(updates: int, on_gpu: bool) -> int:
    """The updates in a timed block, which should take PyTorch a second or two.

    On a GPU PyTorch makes light updates no faster than on a processor, and heavy ones several times faster.
    """
    return min(max(updates, min(10 * updates, 100)), 300) if on_gpu else updates


UPDATES = {name: in_a_block(pair.benchmark_updates, torch.cuda.is_available()) for name, pair in PAIRS.items()}


def made_up_rows(rows: int) -> dict[str, np.ndarray]:
    """A dataset file's rows, float32; its extraction has `rows` transitions."""
    rng, size = np.random.default_rng(0), rows + 1
    return {
        "observations": rng.normal(size=(size, STATE_DIM)).astype(np.float32),
        "actions": rng.uniform(-1.0, 1.0, size=(size, ACTION_DIM)).astype(np.float32),
        "rewards": rng.normal(size=size).astype(np.float32),
        "terminals": rng.random(size) < 0.01,
        "timeouts": np.arange(size) == size - 1,
    }


@dataclass(frozen=True)
class Subject:
    """An algorithm, and the amount of work that is timed.

    Attributes:
        name: The file's name without its suffix.
        updates: Updates in a block.
        settings: The settings in which both configs differ from CORL's defaults.
        rows: Transitions of the dataset.
        frames: Channels, height and width of its images; None for vectors.
    """

    name: str
    updates: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: int = ROWS
    frames: tuple[int, int, int] | None = None

    @property
    def pair(self) -> Pair:
        """The parity adapter."""
        return PAIRS[self.name]

    @cached_property
    def columns(self) -> Any:
        """The pair's training data: its named tuple of NumPy columns."""
        rows = made_up_rows(self.rows)
        if self.frames is None:
            return self.pair.load(rows)
        shape = self.rows + 1, *self.frames
        rows["observations"] = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
        return self.pair.load(rows, self.settings["frame_stack"])

    @property
    def shape(self) -> Shape:
        """The shape of an observation."""
        return STATE_DIM if self.frames is None else shape_of(self.columns.observations)

    @property
    def action_dim(self) -> int:
        """The number of action components, or of finite actions."""
        return ACTION_DIM

    @property
    def max_action(self) -> float:
        """The bound of each component."""
        return 1.0


def subject(name: str) -> Subject:
    """An algorithm at the benchmark's size."""
    return Subject(name, UPDATES[name], PAIRS[name].settings.get("timed", {}))
