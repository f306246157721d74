"""The shape of a tree of sums, which `torch_priorities.py` and `jax_priorities.py` share."""

from collections.abc import Sized


def places_for(capacity: int) -> int:
    """The least power of two that is not below `capacity`."""
    return 1 << (capacity - 1).bit_length()


def levels(tree: Sized) -> int:
    """How many steps lead from the sum of all, in a tree (2L,), to one of its L places."""
    return (len(tree) // 2).bit_length() - 1
