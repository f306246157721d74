"""The parts of a JAX checkpoint, checked before a run resumes: flax would accept any array that has a place."""

from typing import Any

import jax
import numpy as np
from flax import serialization, traverse_util
from jax import Array


def check(restored: Any, saved: Any, state: Any) -> None:
    """Whether a train state is one that a run could have written.

    Args:
        restored: What flax made of the checkpoint.
        saved: What the checkpoint holds, by name.
        state: A state of the structure, kinds and shapes that are expected.

    Raises:
        ValueError: It is not; the message says what differs, and how.
    """
    if unknown := _names(saved) - _names(serialization.to_state_dict(state)):
        raise ValueError(f"{min(unknown)} is unknown")
    found, expected = _leaves(restored), _leaves(state)
    for name in found | expected:
        if misfit := _misfit(found.get(name), expected.get(name)):
            raise ValueError(f"{name} {misfit}")


def _names(nested: Any) -> set[str]:
    """The keys that lead to a state's arrays in a checkpoint; a damaged one may have numbers as keys."""
    return {".".join(map(str, path)) for path in traverse_util.flatten_dict(nested)}


def _leaves(state: Any) -> dict[str, Any]:
    """A state's arrays, by the names that lead to them."""
    return {jax.tree_util.keystr(where).lstrip("."): leaf for where, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _misfit(leaf: Any, like: Array | None) -> str:
    """How a leaf of a checkpoint differs from one that a run writes; empty if it does not."""
    if leaf is None or like is None:
        return "is missing" if leaf is None else "is unknown"
    array = np.asarray(leaf)
    if array.dtype.kind != np.dtype(like.dtype).kind:
        return "is of another kind"
    if array.shape != like.shape:
        return f"has shape {array.shape}, not {like.shape}"
    return "" if np.isfinite(array).all() else "is not finite"
