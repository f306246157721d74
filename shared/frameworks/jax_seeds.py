"""Several seeds as one XLA program: an interval of updates under `vmap`, spread over the devices that there are."""

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
    """`interval(state, key, dataset, start, *static)`, in one program with the other seeds where there are any.

    Each seed keeps its own weights and key, so it draws to the bit what it draws alone. Its parameters differ by
    rounding only: a batched product may add in another order.

    Args:
        interval: An algorithm's `train_interval`.
        state: The seed's train state; used up.
        key: The seed's.
        dataset: A pytree that all seeds share: a `PackedDataset`, or what is made of one.
        start: The updates before the interval.
        static: The number of updates, and whatever else is known when the program is compiled.
        own: Fields of the dataset, a named tuple then, of which each seed has its own.

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
        # One copy for each size of mesh, which shrinks when a seed has failed.
        dataset = seeds.once(mesh, lambda: jax.device_put(dataset, NamedSharding(mesh, PartitionSpec())))
        outcome = _vmapped(interval, states, keys, own, dataset, start, static)
        return _unstacked(jax.device_put(outcome, home), len(parts))


@cache
def _mesh(number: int, platform: str) -> Mesh:
    """As many devices as can share the seeds evenly."""
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
    """The carry of several seeds between calls of one program: stacked, on as many devices as can share them."""

    def __init__(self) -> None:
        """Nobody's."""
        self._owners: list[Any] = []
        self._own: list[Any] = []
        self._stacked: Any = None
        self._home: jax.Device | None = None

    def bring(self, owner: Any, tree: Any) -> None:
        """Adds a seed's; all bring theirs before the first call of `of`."""
        self._owners.append(owner)
        self._own.append(tree)
        (self._home,) = jax.tree.leaves(tree)[0].devices()

    def of(self, owners: Sequence[Any]) -> Any:
        """Stacks the trees of these seeds; the trees of seeds whose runs have failed are dropped."""
        if self._stacked is None or list(owners) != self._owners:
            trees = [self.copy_of(owner) for owner in owners]
            self._owners, self._own = list(owners), []
            self._stacked = self.placed(_stacked(trees))
        return self._stacked

    def placed(self, stacked: Any) -> Any:
        """A tree with an entry for each seed on the devices that share them."""
        assert self._home is not None
        mesh = _mesh(len(self._owners), self._home.platform)
        return jax.device_put(stacked, NamedSharding(mesh, PartitionSpec(_AXIS)))

    def keep(self, stacked: Any) -> None:
        """Takes over what a call has made of the trees."""
        self._stacked = stacked

    def copy_of(self, owner: Any) -> Any:
        """A seed's tree."""
        index = self._owners.index(owner)
        if self._stacked is None:
            return self._own[index]
        return jax.device_put(jax.tree.map(itemgetter(index), self._stacked), self._home)

    def taken_apart(self, owners: Sequence[Any]) -> list[Any]:
        """The trees of these seeds; the stack is nobody's again."""
        trees = [self.copy_of(owner) for owner in owners]
        self._owners, self._own, self._stacked = [], [], None
        return trees
