"""A ring buffer of rows on the device, for online experience or for a model's synthetic rows, and batches from it.

`shared/frameworks/torch_ring.py` has the same names for PyTorch.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shared.frameworks.jax_data import PackedDataset, take
from shared.runs.facts import stored_rows


class Ring(PackedDataset):
    """A replay buffer on the device. When it is full, new rows overwrite the oldest, beginning with the dataset's.

    Attributes:
        size: Number of rows stored, (); rows from `size` on are unused.
        pointer: Position of the next row, (); once the ring is full, that of the oldest.
    """

    size: Array
    pointer: Array

    @classmethod
    def create(cls, dataset: PackedDataset, capacity: int, keeps_dataset: bool = True) -> Self:
        """Creates a ring that starts with the dataset, whose N rows must fit into `capacity`, or an empty one."""
        rows = jnp.zeros((capacity, dataset.rows.shape[1]), dataset.rows.dtype)
        kept = len(dataset) if keeps_dataset else 0
        if kept:
            rows = _in_front(rows, dataset.rows)
        size, pointer = jnp.asarray(kept, jnp.int32), jnp.asarray(kept % capacity, jnp.int32)
        facts = {name: getattr(dataset, name) for name in ("kind", "shapes", "whole", "images")}
        return cls(rows=rows, size=size, pointer=pointer, **facts)

    def content(self) -> dict[str, Any]:
        """The contents for a checkpoint: the rows so far, (size, W), and the position of the next one."""
        return {"rows": np.asarray(self.rows[: int(self.size)]), "pointer": int(self.pointer)}

    def refilled(self, path: str, content: Mapping[str, Any]) -> Self:
        """Returns the ring with the rows that a checkpoint stores under `synthetic`.

        Raises:
            InputError: The entry is missing, or does not fit.
        """
        capacity, width = self.rows.shape
        rows, pointer = stored_rows(content.get("synthetic"), capacity, width, path)
        filled = _in_front(jnp.zeros_like(self.rows), jnp.asarray(rows, self.rows.dtype))
        return self.replace(
            rows=filled, size=jnp.asarray(len(rows), jnp.int32), pointer=jnp.asarray(pointer, jnp.int32)
        )


@partial(jax.jit, donate_argnames="rows")
def _in_front(rows: Array, first: Array) -> Array:
    return jax.lax.dynamic_update_slice(rows, first, (0, 0))


def push(ring: Ring, rows: Array) -> Ring:
    """Stores rows (n, W), the oldest first."""
    capacity = len(ring)

    def store(ring: Ring, row: Array) -> tuple[Ring, None]:
        # One row at a time, so that no slice extends beyond the end, where XLA would move it
        place = ring.pointer, jnp.zeros_like(ring.pointer)
        stored = jax.lax.dynamic_update_slice(ring.rows, row[None].astype(ring.rows.dtype), place)
        size, pointer = jnp.minimum(ring.size + 1, capacity), (ring.pointer + 1) % capacity
        return ring.replace(rows=stored, size=size, pointer=pointer), None

    return jax.lax.scan(store, ring, rows)[0]


def push_kept(ring: Ring, columns: Any, kept: Array) -> Ring:
    """Stores those rows of columns (h, n, ...) that are `kept`, (h, n), step by step.

    The number of kept rows must not exceed the capacity. The others get a place beyond the end, where XLA drops them.
    """
    capacity, kept = len(ring), kept.ravel()
    rows = jnp.concatenate([column.reshape(len(kept), -1) for column in columns], axis=1)
    number = kept.sum()
    places = (ring.pointer + jnp.cumsum(kept) - 1) % capacity
    stored = ring.rows.at[jnp.where(kept, places, capacity)].set(rows.astype(ring.rows.dtype), mode="drop")
    size, pointer = jnp.minimum(ring.size + number, capacity), (ring.pointer + number) % capacity
    return ring.replace(rows=stored, size=size.astype(jnp.int32), pointer=pointer.astype(jnp.int32))


class Sources(NamedTuple):
    """The two buffers that batches are taken from."""

    rows: PackedDataset
    ring: Ring


def take_both(dataset: PackedDataset, ring: Ring, indices: Array, offline: int) -> Any:
    """A batch from two buffers: the first `offline` indices (B,) are dataset rows; later ones continue their count."""
    parts = take(dataset, indices[:offline]), take(ring, indices[offline:] - len(dataset))
    return dataset.kind(*(jnp.concatenate(columns) for columns in zip(*parts, strict=True)))


def take_either(dataset: PackedDataset, ring: Ring, indices: Array) -> Any:
    """A batch from two buffers in any order: indices (B,) from the dataset's size on are rows of the ring."""
    size = len(dataset)
    old, new = take(dataset, jnp.minimum(indices, size - 1)), take(ring, jnp.maximum(indices - size, 0))

    def chosen(old: Array, new: Array) -> Array:
        return jnp.where((indices < size).reshape(-1, *[1] * (old.ndim - 1)), old, new)

    return dataset.kind(*map(chosen, old, new))
