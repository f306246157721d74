"""Nearest-neighbour search among a dataset's rows, in JAX; `torch_neighbours.py` has the same names for PyTorch."""

import hashlib
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jax.numpy import square
from scipy.spatial import KDTree

from shared.frameworks.neighbours import search_on

# Rows whose distances to all keys are in memory at once
_BLOCK = 16384


class _Rows:
    """A k-d tree that equals any other tree of the same rows, so that both can share a compiled program."""

    def __init__(self, rows: np.ndarray) -> None:
        self.tree = KDTree(rows, balanced_tree=False)
        self._digest = hashlib.sha256(rows.tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rows) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)


class Tree(struct.PyTreeNode):
    """A k-d tree, which the host searches in double precision while the compiled program waits."""

    rows: _Rows = struct.field(pytree_node=False)

    @classmethod
    def create(cls, rows: Array) -> Self:
        """Builds the tree from rows (N, D)."""
        return cls(_Rows(np.asarray(rows)))

    def nearest(self, keys: Array) -> Array:
        """The indices (B,) of the rows that are nearest to the keys (B, D)."""

        def search(keys: Array) -> np.ndarray:
            _, indices = self.rows.tree.query(np.asarray(keys), workers=-1)
            return indices.astype(np.int32)

        found = jax.ShapeDtypeStruct(keys.shape[:-1], jnp.int32)
        return jax.pure_callback(search, found, keys, vmap_method="expand_dims")


class BruteForce(struct.PyTreeNode):
    """Computes the distances to all rows, by matrix products on the device.

    A distance is |x|^2 - 2 k.x, for rows around their mean. If two distances differ only by rounding, either row may
    win.
    """

    mean: Array
    # (blocks, rows of a block, D) and (blocks, rows of a block); the last block is padded with rows at infinite
    # distance
    rows: Array
    squares: Array

    @classmethod
    def create(cls, rows: Array) -> Self:
        """Prepares the rows (N, D)."""
        mean = rows.mean(axis=0)
        block, centred = min(_BLOCK, len(rows)), rows - mean
        missing = -len(rows) % block
        squares = jnp.pad(square(centred).sum(axis=1), (0, missing), constant_values=jnp.inf)
        centred = jnp.pad(centred, ((0, missing), (0, 0)))
        return cls(mean, centred.reshape(-1, block, rows.shape[1]), squares.reshape(-1, block))

    def nearest(self, keys: Array) -> Array:
        """The indices (B,) of the rows that are nearest to the keys (B, D)."""
        keys = keys - self.mean

        def in_block(block: tuple[Array, Array]) -> tuple[Array, Array]:
            rows, squares = block
            distances = squares - 2.0 * keys @ rows.T
            return distances.min(axis=1), distances.argmin(axis=1)

        least, places = jax.lax.map(in_block, (self.rows, self.squares))
        block = least.argmin(axis=0)
        return block * self.rows.shape[1] + jnp.take_along_axis(places, block[None], axis=0)[0]


def search_among(rows: Array, how: str) -> Tree | BruteForce:
    """A search among rows (N, D) by `tree`, by `brute` force, or by the faster of both on their device, `auto`."""
    (device,) = rows.devices()
    return Tree.create(rows) if search_on(device.platform, how) == "tree" else BruteForce.create(rows)
