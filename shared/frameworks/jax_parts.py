"""Checks the parts of a JAX checkpoint before a run resumes, because flax would accept arrays of any shape."""

from typing import Any

import jax
import numpy as np
from flax import serialization, traverse_util
from jax import Array


def check(restored: Any, saved: Any, state: Any) -> None:
    """Checks that a run could have written a train state.

    Args:
        restored: The state that flax restored from the checkpoint.
        saved: The contents of the checkpoint, by name.
        state: A state with the expected structure, dtypes and shapes.

    Raises:
        ValueError: It could not; the message says what differs.
    """
    if unknown := _names(saved) - _names(serialization.to_state_dict(state)):
        raise ValueError(f"{min(unknown)} is unknown")
    found, expected = _leaves(restored), _leaves(state)
    for name in found | expected:
        if misfit := _misfit(found.get(name), expected.get(name)):
            raise ValueError(f"{name} {misfit}")


def _names(nested: Any) -> set[str]:
    """The paths of a state's arrays in a checkpoint; the keys in a damaged one may be numbers."""
    return {".".join(map(str, path)) for path in traverse_util.flatten_dict(nested)}


def _leaves(state: Any) -> dict[str, Any]:
    """A state's arrays, by their paths."""
    return {jax.tree_util.keystr(where).lstrip("."): leaf for where, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _misfit(leaf: Any, like: Array | None) -> str:
    """Describes how a leaf of a checkpoint differs from the expected one; empty if it does not."""
    if leaf is None or like is None:
        return "is missing" if leaf is None else "is unknown"
    array = np.asarray(leaf)
    if array.dtype.kind != np.dtype(like.dtype).kind:
        return "is of another kind"
    if array.shape != like.shape:
        return f"has shape {array.shape}, not {like.shape}"
    return "" if np.isfinite(array).all() else "is not finite"
