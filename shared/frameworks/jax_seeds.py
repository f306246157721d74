"""Several seeds as one XLA program: an interval of updates under `vmap`, spread over the available devices."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shared.runs import seeds

Interval = Callable[..., tuple[Any, Any]]
_AXIS = "seeds"


def train_together(
    interval: Interval, state: Any, key: Array, dataset: Any, start: int, *static: Any, own: Sequence[str] = ()
) -> tuple[Any, Any]:
    """Computes `interval(state, key, dataset, start, *static)`, in one program with the other seeds if there are any.

    Each seed keeps its own weights and key, so its draws are the same to the bit as when it runs alone. Its parameters
    only differ by rounding, because a batched product may add in another order.

    Args:
        interval: An algorithm's `train_interval`.
        state: The seed's train state; donated.
        key: The seed's key.
        dataset: A pytree that all seeds share: a `PackedDataset`, or one that contains it.
        start: The number of updates before the interval.
        static: The static arguments: the number of updates, and any others.
        own: Fields of the dataset, then a named tuple, that differ between seeds.

    Returns:
        The state after the interval, and its history.
    """
    if seeds.count() == 1:
        return interval(state, key, dataset, start, *static)
    parts = state, key, {name: getattr(dataset, name) for name in own}
    return seeds.meet(start, parts, partial(_train_all, interval, dataset, start, static))


def _train_all(
    interval: Interval, dataset: Any, start: int, static: Sequence[Any], parts: Sequence[tuple[Any, Array, dict]]
) -> list[tuple[Any, Any]]:
    (home,) = jax.tree.leaves(dataset)[0].devices()
    mesh = _mesh(len(parts), home.platform)
    with jax.default_device(home):
        states, keys, own = jax.device_put(_stacked(parts), NamedSharding(mesh, PartitionSpec(_AXIS)))
        if own:
            dataset = dataset._replace(**dict.fromkeys(own))
        # One copy for each mesh size; the mesh shrinks when a seed fails.
        dataset = seeds.once(mesh, lambda: jax.device_put(dataset, NamedSharding(mesh, PartitionSpec())))
        outcome = _vmapped(interval, states, keys, own, dataset, start, static)
        return _unstacked(jax.device_put(outcome, home), len(parts))


@cache
def _mesh(number: int, platform: str) -> Mesh:
    """The largest number of devices that can share the seeds evenly."""
    devices = jax.devices(platform)
    return Mesh(devices[: max(n for n in range(1, len(devices) + 1) if number % n == 0)], _AXIS)


@jax.jit
def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@partial(jax.jit, static_argnames="number")
def _unstacked(tree: Any, number: int) -> list[Any]:
    return [jax.tree.map(itemgetter(i), tree) for i in range(number)]


@partial(jax.jit, static_argnames=("interval", "static"), donate_argnames="states")
def _vmapped(
    interval: Interval, states: Any, keys: Array, own: dict, dataset: Any, start: Array, static: tuple[Any, ...]
) -> tuple[Any, Any]:
    def one(state: Any, key: Array, own: dict) -> tuple[Any, Any]:
        return interval(state, key, dataset._replace(**own) if own else dataset, start, *static)

    return jax.vmap(one)(states, keys, own)


class Stack:
    """The states of several seeds, stacked between calls of one program, on devices that share them evenly."""

    def __init__(self) -> None:
        """Starts empty."""
        self._owners: list[Any] = []
        self._own: list[Any] = []
        self._stacked: Any = None
        self._home: jax.Device | None = None

    def bring(self, owner: Any, tree: Any) -> None:
        """Adds a seed's tree; all seeds add theirs before the first call of `of`."""
        self._owners.append(owner)
        self._own.append(tree)
        (self._home,) = jax.tree.leaves(tree)[0].devices()

    def of(self, owners: Sequence[Any]) -> Any:
        """Stacks the trees of these seeds, and drops the trees of failed seeds."""
        if self._stacked is None or list(owners) != self._owners:
            trees = [self.copy_of(owner) for owner in owners]
            self._owners, self._own = list(owners), []
            self._stacked = self.placed(_stacked(trees))
        return self._stacked

    def placed(self, stacked: Any) -> Any:
        """Places a tree with a leading axis of seeds on the devices that share them."""
        assert self._home is not None
        mesh = _mesh(len(self._owners), self._home.platform)
        return jax.device_put(stacked, NamedSharding(mesh, PartitionSpec(_AXIS)))

    def keep(self, stacked: Any) -> None:
        """Stores the stacked trees that a call returned."""
        self._stacked = stacked

    def copy_of(self, owner: Any) -> Any:
        """A copy of a seed's tree."""
        index = self._owners.index(owner)
        if self._stacked is None:
            return self._own[index]
        return jax.device_put(jax.tree.map(itemgetter(index), self._stacked), self._home)

    def taken_apart(self, owners: Sequence[Any]) -> list[Any]:
        """Returns the trees of these seeds, and empties the stack."""
        trees = [self.copy_of(owner) for owner in owners]
        self._owners, self._own, self._stacked = [], [], None
        return trees
