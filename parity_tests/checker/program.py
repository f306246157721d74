"""Updates on end, compiled."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from shared.errors import InputError

# From a state and what an update is given by name to the next state and its metrics
Update = Callable[[Any, Mapping[str, Any]], tuple[Any, Mapping[str, Any]]]

# What differs from one update to the next within a program
TRACED = ("batch", "noise", "step")


def trajectory(update: Update, state: Any, inputs: Sequence[Mapping[str, Any]]) -> Any:
    """The state after one update for each of the inputs, compiled once for each set of what is fixed in them.

    Raises:
        InputError: An update gives a state of another structure.
    """
    programs: dict[Any, Program] = {}
    for given in inputs:
        fixed = {name: value for name, value in given.items() if name not in TRACED}
        key = tuple(fixed.items())
        programs[key] = programs.get(key) or Program(update, state, fixed)
        state = programs[key](state, {name: given[name] for name in TRACED})
    return state


class Program:
    """One update, compiled; leaves of the state that are no arrays, settings say, stay as they are."""

    def __init__(self, update: Update, state: Any, fixed: Mapping[str, Any]) -> None:
        self.update, self.fixed = update, fixed
        leaves, structure = jax.tree.flatten(state)
        self.structure: Any = structure
        self.constants = [None if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        self.run = jax.jit(self._run)

    def __call__(self, state: Any, traced: Mapping[str, Any]) -> Any:
        """The next state."""
        return self._joined(self.run(self._arrays(jax.tree.leaves(state)), traced))

    def _arrays(self, leaves: Sequence[Any]) -> list[Any]:
        return [leaf for leaf, constant in zip(leaves, self.constants, strict=True) if constant is None]

    def _joined(self, arrays: Sequence[Any]) -> Any:
        rest = iter(arrays)
        leaves = [next(rest) if constant is None else constant for constant in self.constants]
        return jax.tree.unflatten(self.structure, leaves)

    def _run(self, arrays: Sequence[Any], traced: Mapping[str, Any]) -> list[Any]:
        after, _ = self.update(self._joined(arrays), {**self.fixed, **traced})
        leaves, structure = jax.tree.flatten(after)
        if structure != self.structure:
            raise InputError(f"update gives {structure}: expected a state like the one it is given, {self.structure}")
        return self._arrays(leaves)
