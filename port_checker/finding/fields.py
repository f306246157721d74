"""Accesses a state's fields, in a dataclass, a named tuple or a dict, with or without flax's TrainState."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from optax.tree_utils import tree_get, tree_set

from shared.errors import InputError
from shared.frameworks.part_names import spelling_of


def field(state: Any, name: str) -> Any:
    """Returns a field of a state, which may be a dataclass, a named tuple or a dict.

    Raises:
        InputError: The state has no field of this name.
    """
    found = state.get(name) if isinstance(state, Mapping) else getattr(state, name, None)
    if found is None:
        raise InputError(f"the state that create_train_state gives has no {name}: expected a field of this name")
    return found


def called(state: Any, part: str, parts: Collection[str]) -> str:
    """The name of the state's field for one of the reference's parts, in the port's spelling."""
    return spelling_of(part, state if isinstance(state, Mapping) else dir(state), parts)


def replaced(state: Any, fields: Mapping[str, Any]) -> Any:
    """The state with other values in these fields."""
    if isinstance(state, Mapping):
        kind: Any = type(state)
        return kind({**state, **fields})
    replace = getattr(state, "_replace", None) or getattr(state, "replace", None)
    return replace(**fields) if replace else dataclasses.replace(state, **fields)


def is_train_state(part: Any) -> bool:
    """Whether a part contains its optimiser's state, as flax's TrainState does."""
    return hasattr(part, "opt_state")


def weights_of(part: Any) -> Any:
    """A part's tree of weights: its `params` if it has any, otherwise the part itself."""
    return getattr(part, "params", part)


def with_weights(part: Any, weights: Any) -> Any:
    """The part with another tree of weights."""
    return part.replace(params=weights) if hasattr(part, "params") else weights


def argument(part: Any) -> Any:
    """A part as the file's functions take it: a TrainState's weights, or else the state's field unchanged."""
    return part.params if is_train_state(part) else part


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The location of an optimiser's state.

    Attributes:
        field: The state's field that contains it, directly or in a part's TrainState.
        of: The parts that it updates, in the order of its trees.
    """

    field: str
    of: tuple[str, ...]

    def get(self, state: Any) -> Any:
        """The optax state."""
        found = field(state, self.field)
        return found.opt_state if is_train_state(found) else found

    def put(self, state: Any, opt_state: Any) -> Any:
        """The state with another optax state."""
        found = field(state, self.field)
        return replaced(state, {self.field: found.replace(opt_state=opt_state) if is_train_state(found) else opt_state})

    def moments(self, state: Any) -> tuple[Any, Any, Any]:
        """Adam's first and second moments and number of steps; for gradient descent, the momentum alone.

        Raises:
            InputError: There are none, or more than one of each.
        """
        if (momentum := tree_get(self.get(state), "trace", filtering=_in_trace)) is not None:
            return momentum, None, None
        try:
            m, v, steps = (tree_get(self.get(state), name, filtering=_in_adam) for name in ("mu", "nu", "count"))
        except KeyError:
            m = None
        if m is None:
            raise InputError(f"{self.field} must be the state of an optax optimiser with Adam's moments, one in all")
        return m, v, steps

    def with_momentum(self, state: Any, momentum: Any) -> Any:
        """The state with another momentum, of any structure.

        Raises:
            InputError: The momentum does not have the same number of arrays with the same shapes.
        """
        like = tree_get(self.get(state), "trace", filtering=_in_trace)
        if [np.shape(x) for x in jax.tree.leaves(momentum)] != [np.shape(x) for x in jax.tree.leaves(like)]:
            raise InputError(f"{self.field} must be the state of optax.sgd with the momentum of {', '.join(self.of)}")
        momentum = jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(momentum))
        return self.put(state, tree_set(self.get(state), _in_trace, trace=momentum))

    def with_moments(self, state: Any, m: Any, v: Any, steps: np.ndarray) -> Any:
        """The state with other moments, of any structure, and this number of steps.

        Raises:
            InputError: The moments do not have the same number of arrays with the same shapes.
        """
        like, _, _ = self.moments(state)
        if [np.shape(x) for x in jax.tree.leaves(m)] != [np.shape(x) for x in jax.tree.leaves(like)]:
            raise InputError(f"{self.field} must hold moments for the weights of {', '.join(self.of)}")
        m, v = (jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(tree)) for tree in (m, v))
        filled = tree_set(self.get(state), _in_adam, mu=m, nu=v)
        # In double precision the count is 64 bits wide. Optax's own counts are int32, and JAX divides those in single
        # precision, so that a correct schedule's rate would be 1e-8 off.
        count = jnp.asarray(steps, int)
        # A schedule in the same chain counts the same steps, and so does flax's TrainState.
        state = self.put(state, tree_set(filled, _in_tuple, count=count))
        part = field(state, self.field)
        counts = is_train_state(part) and hasattr(part, "step")
        return replaced(state, {self.field: part.replace(step=count)}) if counts else state


def _in_adam(path: Any, _: Any) -> bool:
    return getattr(path[-1], "tuple_name", None) == "ScaleByAdamState"


def _in_trace(path: Any, _: Any) -> bool:
    return getattr(path[-1], "tuple_name", None) == "TraceState"


def _in_tuple(path: Any, _: Any) -> bool:
    return hasattr(path[-1], "tuple_name")
