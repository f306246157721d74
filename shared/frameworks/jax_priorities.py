"""Prioritised sampling of rows, in JAX. `shared/frameworks/torch_priorities.py` has the same names for PyTorch.

Priorities are stored in a sum tree, an array (2L,) for L places, where L is a power of two. Place p is entry L + p.
Entry i is the sum of its children 2i and 2i + 1, and entry 1 is the sum of all. Both frameworks add and compare in the
same order, so equal numbers find equal places. Nothing leaves the device.
"""

import jax.numpy as jnp
from jax import Array
from jax.numpy import where

from shared.frameworks.sum_tree import levels, places_for


def no_priorities(capacity: int) -> Array:
    """A tree with at least this many places, all of priority 0."""
    return jnp.zeros(2 * places_for(capacity))


def write(tree: Array, places: Array, values: Array) -> Array:
    """Sets the priorities (n,) of the places (n,); every sum above them is recomputed from its children."""
    nodes = len(tree) // 2 + places
    tree = tree.at[nodes].set(values)
    for _ in range(levels(tree)):
        nodes = nodes >> 1
        tree = tree.at[nodes].set(tree[2 * nodes] + tree[2 * nodes + 1])
    return tree


def fill(tree: Array, number: int, value: float) -> Array:
    """Gives the first `number` places this priority, and all others 0."""
    sums = where(jnp.arange(len(tree) // 2) < number, value, 0.0).astype(tree.dtype)
    levels = [sums]
    while len(levels[0]) > 1:
        levels = [levels[0][::2] + levels[0][1::2], *levels]
    return jnp.concatenate([jnp.zeros(1, tree.dtype), *levels])


def find(tree: Array, uniform: Array) -> Array:
    """Maps numbers (n,) in [0, 1) to places (n,), each found in proportion to its priority.

    A place of priority 0 is never found if another is positive, even with rounding errors. The search only goes right
    if the right child is positive. It goes left if the right child is 0, or if the number, which is not negative, is
    below the left child. In both cases a positive entry leads to a positive entry.
    """
    nodes, mass = jnp.ones_like(uniform, dtype=jnp.int32), uniform * tree[1]
    for _ in range(levels(tree)):
        left, right = tree[2 * nodes], tree[2 * nodes + 1]
        to_the_right = (mass >= left) & (right > 0.0)
        mass = where(to_the_right, mass - left, mass)
        nodes = 2 * nodes + to_the_right
    return nodes - len(tree) // 2
