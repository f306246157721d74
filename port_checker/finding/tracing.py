"""Traces functions of a file once and computes them with NumPy, including sequences of updates."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.engine.interpreter import interpreted
from shared.errors import InputError

# Maps a state and an update's arguments by name to the next state and its metrics
Update = Callable[[Any, Mapping[str, Any]], tuple[Any, Mapping[str, Any]]]


class Traced:
    """Computes functions of trees, each traced once for each kind of arguments.

    Arrays are traced. Other leaves, such as settings or whether an update is a delayed one, are fixed in a trace.
    """

    def __init__(self) -> None:
        self._programs: dict[Hashable, tuple[Callable, list[Any]]] = {}

    def __call__(self, name: str, function: Callable, *trees: Any) -> Any:
        """Computes the named function for these arguments; leaves that are not arrays are constants of its trace."""
        leaves, structure = jax.tree.flatten(trees)
        fixed = tuple(None if _is_array(leaf) else leaf for leaf in leaves)
        key = name, structure, fixed
        if key not in self._programs:
            outputs: list[Any] = []

            def run(arrays: Sequence[Any]) -> list[Any]:
                rest = iter(arrays)
                given = [next(rest) if constant is None else constant for constant in fixed]
                found, out = jax.tree.flatten(function(*jax.tree.unflatten(structure, given)))
                outputs[:] = [out, [None if _is_array(leaf) else leaf for leaf in found]]
                return [leaf for leaf in found if _is_array(leaf)]

            self._programs[key] = interpreted(run), outputs
        run, outputs = self._programs[key]
        arrays = iter(run([leaf for leaf in leaves if _is_array(leaf)]))
        out, constants = outputs
        return jax.tree.unflatten(out, [next(arrays) if constant is None else constant for constant in constants])


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def trajectory(traced: Traced, update: Update, state: Any, inputs: Sequence[Mapping[str, Any]]) -> Any:
    """The state after one update for each of the inputs.

    Raises:
        InputError: An update gives a state of another structure.
    """
    # A Python number, such as a fresh TrainState's `step`, would be fixed in a trace, so that each update is traced
    # anew.
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf) if type(leaf) in (int, float) else leaf, state)
    for given in inputs:
        after, _ = traced("update", update, state, dict(given))
        found, expected = (str(jax.tree.structure(tree)) for tree in (after, state))
        if found != expected:
            raise InputError(f"update gives {found}: expected a state like the one it is given, {expected}")
        state = after
    return state
