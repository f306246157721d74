"""Nearest-neighbour search among a dataset's rows, in PyTorch; `jax_neighbours.py` has the same names for JAX."""

import torch
from scipy.spatial import KDTree
from torch import Tensor, square

from shared.frameworks.neighbours import search_on

# Rows whose distances to all keys are in memory at once
_BLOCK = 16384


class Tree:
    """A k-d tree, which the host searches in double precision."""

    def __init__(self, rows: Tensor) -> None:
        """Builds the tree from rows (N, D)."""
        self._tree = KDTree(rows.cpu().numpy(), balanced_tree=False)

    def nearest(self, keys: Tensor) -> Tensor:
        """The indices (B,) of the rows that are nearest to the keys (B, D), on the keys' device."""
        _, indices = self._tree.query(keys.cpu().numpy(), workers=-1)
        return torch.as_tensor(indices, device=keys.device)


class BruteForce:
    """Computes the distances to all rows, by matrix products on the device.

    A distance is |x|^2 - 2 k.x, for rows around their mean. If two distances differ only by rounding, either row may
    win.
    """

    def __init__(self, rows: Tensor) -> None:
        """Prepares the rows (N, D)."""
        self._mean = rows.mean(axis=0)
        self._rows = rows - self._mean
        self._squares = square(self._rows).sum(axis=1)

    def nearest(self, keys: Tensor) -> Tensor:
        """The indices (B,) of the rows that are nearest to the keys (B, D)."""
        keys = keys - self._mean
        blocks = zip(self._squares.split(_BLOCK), self._rows.split(_BLOCK), strict=True)
        found = [torch.min(squares - 2.0 * keys @ rows.T, axis=1) for squares, rows in blocks]
        least, places = (torch.stack(values, axis=1) for values in zip(*found, strict=True))
        block = least.argmin(axis=1, keepdim=True)
        return (block * _BLOCK + places.gather(1, block)).squeeze(1)


def search_among(rows: Tensor, how: str) -> Tree | BruteForce:
    """A search among rows (N, D) by `tree`, by `brute` force, or by the faster of both on their device, `auto`."""
    return Tree(rows) if search_on(rows.device.type, how) == "tree" else BruteForce(rows)
