"""Image observations: each frame of a dataset is stored once, with the frames that each observation shows.

A stack of F frames is only assembled when its row is read. Therefore frame stacking needs hardly any more memory.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.errors import InputError


@dataclass(frozen=True)
class Stacks:
    """Image observations of N rows, indexed like an array: `stacks[rows]` is (..., F * C, H, W), bytes.

    Attributes:
        frames: (M + 1, C, H, W) bytes; the last frame is black.
        places: (N, F) integers: the frames that each row shows, the oldest first.
    """

    frames: Any
    places: Any

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: Any) -> Any:
        shown = self.frames[self.places[rows]]
        frames, channels, *size = shown.shape[-4:]
        return shown.reshape(*shown.shape[:-4], frames * channels, *size)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, F * C, H, W)."""
        _, channels, *size = self.frames.shape
        return (len(self.places), self.places.shape[1] * channels, *size)

    @property
    def ndim(self) -> int:
        """4."""
        return 4

    @property
    def dtype(self) -> Any:
        """The type of the images."""
        return self.frames.dtype

    def take(self, rows: np.ndarray, axis: int = 0) -> "Stacks":
        """The stacks of these rows (n,), which share the frames."""
        return Stacks(self.frames, self.places.take(rows, axis=axis))


def moved(columns: Iterable[Any], move: Callable[[Any], Any]) -> list[Any]:
    """Moves columns to another library or device; frames that several stacks share are moved once.

    Args:
        columns: Arrays and `Stacks`.
        move: Moves an array.
    """
    frames: dict[int, Any] = {}

    def moved_column(column: Any) -> Any:
        if not isinstance(column, Stacks):
            return move(column)
        if id(column.frames) not in frames:
            frames[id(column.frames)] = move(column.frames)
        return Stacks(frames[id(column.frames)], move(column.places))

    return list(map(moved_column, columns))


def stacked_rows(raw: dict[str, np.ndarray], ends: np.ndarray, frame_stack: int) -> tuple[Stacks, Stacks]:
    """Stacks the frames of each row of a dataset, before and after its step.

    A stack contains no frames of other episodes. Places before an episode's first frame are black, as in d3rlpy. After
    a terminal step, the whole stack is black. After a time limit the next frame is unknown, unless `raw` states it.

    Args:
        raw: `observations` (N, C, H, W), bytes, and `terminals` (N,). Optionally `next_observations`, of which only
            each episode's last differ from the next row's observations.
        ends: (N,), whether a row ends its episode.
        frame_stack: F, frames in a stack.

    Returns:
        Both stacks for N rows. After a time limit, the second is black if the next frame is unknown.

    Raises:
        InputError: No episode has as many rows as a stack has frames.
    """
    frames, size = raw["observations"], len(ends)
    starts = np.append(0, np.flatnonzero(ends) + 1)
    if frame_stack > (longest := int(np.diff(np.append(starts, size)).max())):
        raise InputError(f"frame_stack {frame_stack} is more than the {longest} rows of the longest episode: lower it")
    first = starts[np.searchsorted(starts, np.arange(size), side="right") - 1]
    after = np.arange(1, size + 1)
    known = ~ends
    known[-1] = False
    if "next_observations" in raw:
        own = np.flatnonzero(~known)
        frames = np.concatenate([frames, raw["next_observations"][own]])
        after[own], known[own] = size + np.arange(len(own)), True
    known &= ~raw["terminals"].astype(bool)
    black = len(frames)
    frames = np.concatenate([frames, np.zeros_like(frames[:1])])
    back = np.arange(1 - frame_stack, 1)
    rows = np.arange(size)[:, None] + back
    places = np.where(rows < first[:, None], black, rows)
    following = np.append(places[:, 1:], after[:, None], axis=1)
    following[~known] = black
    kind = np.int32 if black < 2**31 else np.int64
    return Stacks(frames, places.astype(kind)), Stacks(frames, following.astype(kind))
