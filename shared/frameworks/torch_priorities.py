"""Prioritised sampling of rows, in PyTorch. `shared/frameworks/jax_priorities.py` has the same names for JAX.

Priorities are stored in a sum tree, an array (2L,) for L places, where L is a power of two. Place p is entry L + p.
Entry i is the sum of its children 2i and 2i + 1, and entry 1 is the sum of all. Both frameworks add and compare in the
same order, so equal numbers find equal places.
"""

import torch
from torch import Tensor, nn, where

from shared.frameworks.sum_tree import levels, places_for


class Priorities(nn.Module):
    """A sum tree as a part of a trainer. In JAX it is an array in the state."""

    def __init__(self, capacity: int) -> None:
        """Creates a tree with at least this many places, all of priority 0."""
        super().__init__()
        self.constant = nn.Parameter(torch.zeros(2 * places_for(capacity)), requires_grad=False)

    def forward(self) -> Tensor:
        """The tree, (2L,)."""
        return self.constant


def write(tree: Tensor, places: Tensor, values: Tensor) -> None:
    """Sets the priorities (n,) of the places (n,), in place; every sum above them is recomputed from its children."""
    nodes = len(tree) // 2 + places
    tree[nodes] = values
    for _ in range(levels(tree)):
        nodes = nodes >> 1
        tree[nodes] = tree[2 * nodes] + tree[2 * nodes + 1]


def fill(tree: Tensor, number: int, value: float) -> None:
    """Gives the first `number` places this priority, and all others 0, in place."""
    sums = where(torch.arange(len(tree) // 2, device=tree.device) < number, value, 0.0).to(tree)
    levels = [sums]
    while len(levels[0]) > 1:
        levels = [levels[0][::2] + levels[0][1::2], *levels]
    tree.copy_(torch.cat([torch.zeros_like(sums[:1]), *levels]))


def find(tree: Tensor, uniform: Tensor) -> Tensor:
    """Maps numbers (n,) in [0, 1) to places (n,), each found in proportion to its priority.

    A place of priority 0 is never found if another is positive, even with rounding errors. The search only goes right
    if the right child is positive. It goes left if the right child is 0, or if the number, which is not negative, is
    below the left child. In both cases a positive entry leads to a positive entry.
    """
    nodes, mass = torch.ones_like(uniform, dtype=torch.int64), uniform * tree[1]
    for _ in range(levels(tree)):
        left, right = tree[2 * nodes], tree[2 * nodes + 1]
        to_the_right = (mass >= left) & (right > 0.0)
        mass = where(to_the_right, mass - left, mass)
        nodes = 2 * nodes + to_the_right
    return nodes - len(tree) // 2
