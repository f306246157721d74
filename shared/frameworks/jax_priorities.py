"""Rows drawn in proportion to their priorities, in JAX. `shared/frameworks/torch_priorities.py` holds the same names.

Priorities stand in a tree of sums, one array (2L,) for L places, where L is a power of two. Place p is entry L + p.
Entry i is the sum of its children 2i and 2i + 1, and entry 1 is the sum of all. Both frameworks add and compare in one
order, so equal numbers find equal places. Nothing leaves the device.
"""

import jax.numpy as jnp
from jax import Array
from jax.numpy import where

from shared.frameworks.sum_tree import levels, places_for


def no_priorities(capacity: int) -> Array:
    """A tree with so many places at least, all of priority 0."""
    return jnp.zeros(2 * places_for(capacity))


def write(tree: Array, places: Array, values: Array) -> Array:
    """The tree with these priorities (n,) at the places (n,). Every sum above them is taken anew from its children."""
    nodes = len(tree) // 2 + places
    tree = tree.at[nodes].set(values)
    for _ in range(levels(tree)):
        nodes = nodes >> 1
        tree = tree.at[nodes].set(tree[2 * nodes] + tree[2 * nodes + 1])
    return tree


def fill(tree: Array, number: int, value: float) -> Array:
    """The tree whose first `number` places have this priority, and all others none."""
    sums = where(jnp.arange(len(tree) // 2) < number, value, 0.0).astype(tree.dtype)
    levels = [sums]
    while len(levels[0]) > 1:
        levels = [levels[0][::2] + levels[0][1::2], *levels]
    return jnp.concatenate([jnp.zeros(1, tree.dtype), *levels])


def find(tree: Array, uniform: Array) -> Array:
    """The places (n,) that numbers (n,) in [0, 1) lead to: each in proportion to its priority.

    A place of priority 0 is never found, whatever the rounding, if another has one. The walk goes right only where the
    right child is positive. It goes left where the right child is 0, or where a number that is not negative lies below
    the left child. So from an entry that is positive it always goes to one that is positive.
    """
    nodes, mass = jnp.ones_like(uniform, dtype=jnp.int32), uniform * tree[1]
    for _ in range(levels(tree)):
        left, right = tree[2 * nodes], tree[2 * nodes + 1]
        to_the_right = (mass >= left) & (right > 0.0)
        mass = where(to_the_right, mass - left, mass)
        nodes = 2 * nodes + to_the_right
    return nodes - len(tree) // 2
