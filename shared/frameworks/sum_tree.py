"""The shape of the sum tree in `torch_priorities.py` and `jax_priorities.py`."""

from collections.abc import Sized


def places_for(capacity: int) -> int:
    """The smallest power of two that is at least `capacity`."""
    return 1 << (capacity - 1).bit_length()


def levels(tree: Sized) -> int:
    """The number of levels between the root of a sum tree (2L,) and its L places."""
    return (len(tree) // 2).bit_length() - 1
