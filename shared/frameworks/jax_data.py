"""A dataset on the device, in JAX. `shared/frameworks/torch_data.py` has the same names for PyTorch."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from shared.data.images import Stacks, moved
from shared.runs import seeds

jax.tree_util.register_dataclass(Stacks, ["frames", "places"], [])


class PackedDataset(struct.PyTreeNode):
    """A dataset as one array with a row per transition, (N, 2S + A + 2) for a `Batch`: a batch is a single gather.

    Images are stored separately, as bytes.

    Attributes:
        rows: All columns but images, flattened and side by side.
        kind: The type of a batch, a named tuple.
        shapes: For each of these columns, the shape of a row.
        whole: For each of these columns, whether it contains integers, which single precision represents up to 2**24.
        images: Columns of images by name, (N, C, H, W) or `Stacks`.
    """

    rows: Array
    kind: type = struct.field(pytree_node=False)
    shapes: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)
    whole: tuple[bool, ...] = struct.field(pytree_node=False)
    images: Mapping[str, Any]

    def __len__(self) -> int:
        return self.rows.shape[0]


def to_device(dataset: Any) -> PackedDataset:
    """Packs a dataset on JAX's default device, in its default float type; seeds with one dataset share the result."""
    return seeds.once(dataset, lambda: _packed(dataset))


def _packed(dataset: Any) -> PackedDataset:
    shown = {name: column for name, column in zip(dataset._fields, dataset, strict=True) if column.dtype == np.uint8}
    images = dict(zip(shown, moved(shown.values(), jnp.asarray), strict=True))
    packed = [np.asarray(column) for name, column in zip(dataset._fields, dataset, strict=True) if name not in shown]
    columns = [np.reshape(column, (len(column), math.prod(column.shape[1:]))) for column in packed]
    rows = jnp.asarray(np.concatenate(columns, axis=1), dtype=float)
    shapes, whole = (tuple(column.shape[1:] for column in packed), tuple(column.dtype == np.int64 for column in packed))
    return PackedDataset(rows, type(dataset), shapes, whole, images)


def take(dataset: PackedDataset, indices: Array) -> Any:
    """A batch of the rows `indices`, (B,), or (B, K) for windows."""
    ends = np.cumsum([math.prod(shape) for shape in dataset.shapes])
    columns = jnp.split(dataset.rows[indices], ends[:-1], axis=-1)
    kinds = zip(columns, dataset.shapes, dataset.whole, strict=True)
    shaped = ((column.reshape(*indices.shape, *shape), whole) for column, shape, whole in kinds)
    others = iter(column.astype(int) if whole else column for column, whole in shaped)
    images = {name: column[indices] for name, column in dataset.images.items()}
    kind: Any = dataset.kind
    return kind(*(images[name] if name in images else next(others) for name in kind._fields))


def store(dataset: PackedDataset, columns: Any, at: int) -> PackedDataset:
    """Overwrites the rows from `at` on by NumPy columns (n, ...); donates the given dataset.

    Raises:
        IndexError: The rows do not fit. XLA would silently write them at an earlier place.
    """
    if at + len(columns[0]) > len(dataset):
        raise IndexError(f"{len(columns[0])} rows at {at} do not fit into {len(dataset)}")
    new = _packed(columns)
    return _overwrite(dataset, new.rows, new.images, at)


@partial(jax.jit, donate_argnames="dataset")
def _overwrite(dataset: PackedDataset, rows: Array, images: Mapping[str, Array], at: Array) -> PackedDataset:
    def written(whole: Array, part: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(whole, part, at, axis=0)

    return dataset.replace(rows=written(dataset.rows, rows), images=jax.tree.map(written, dataset.images, dict(images)))
