"""A dataset on the device, in JAX. `shared/frameworks/torch_data.py` holds the same names for PyTorch."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from shared.runs import seeds


class PackedDataset(struct.PyTreeNode):
    """A dataset as one array with a row per transition, (N, 2S + A + 2) for a `Batch`: a batch is a single gather.

    Attributes:
        rows: The columns, flattened and side by side.
        kind: The named tuple that a batch is.
        shapes: The shape of each column's rows.
        whole: Whether each column holds whole numbers, which a float counts up to 2**24 in single precision.
    """

    rows: Array
    kind: type = struct.field(pytree_node=False)
    shapes: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)
    whole: tuple[bool, ...] = struct.field(pytree_node=False)

    def __len__(self) -> int:
        return self.rows.shape[0]


def to_device(dataset: Any) -> PackedDataset:
    """The dataset on JAX's default device, packed, in JAX's default float type; once for all seeds that share it."""
    return seeds.once(dataset, lambda: _packed(dataset))


def _packed(dataset: Any) -> PackedDataset:
    columns = [np.reshape(column, (len(column), math.prod(np.shape(column)[1:]))) for column in dataset]
    rows = jnp.asarray(np.concatenate(columns, axis=1), dtype=float)
    shapes = tuple(np.shape(column)[1:] for column in dataset)
    return PackedDataset(rows, type(dataset), shapes, tuple(np.asarray(c).dtype == np.int64 for c in dataset))


def take(dataset: PackedDataset, indices: Array) -> Any:
    """The rows `indices`, (B,) for a batch or (B, K) for windows, of the dataset: a tuple of its kind."""
    ends = np.cumsum([math.prod(shape) for shape in dataset.shapes])
    columns = jnp.split(dataset.rows[indices], ends[:-1], axis=-1)
    kinds = zip(columns, dataset.shapes, dataset.whole, strict=True)
    shaped = ((column.reshape(*indices.shape, *shape), whole) for column, shape, whole in kinds)
    return dataset.kind(*(column.astype(int) if whole else column for column, whole in shaped))


def store(dataset: PackedDataset, columns: Any, at: int) -> PackedDataset:
    """The dataset with rows from number `at` on overwritten by NumPy columns (n, ...); the one given is used up.

    Raises:
        IndexError: There is no room for them, where XLA would write them further up.
    """
    if at + len(columns[0]) > len(dataset):
        raise IndexError(f"{len(columns[0])} rows at {at} do not fit into {len(dataset)}")
    return _overwrite(dataset, _packed(columns).rows, at)


@partial(jax.jit, donate_argnames="dataset")
def _overwrite(dataset: PackedDataset, rows: Array, at: Array) -> PackedDataset:
    return dataset.replace(rows=jax.lax.dynamic_update_slice(dataset.rows, rows, (at, 0)))
