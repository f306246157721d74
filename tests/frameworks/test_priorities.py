"""Trees of priorities: both frameworks draw rows in proportion, and never a place without a row."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity_tests.engine.precision import both_in
from shared.data.transitions import Batch
from shared.frameworks import jax_priorities, jax_ring, sum_tree, torch_priorities, torch_ring
from shared.frameworks.jax_data import to_device
from shared.frameworks.torch_data import to_device as to_torch

# Powers of two that single precision can represent, and numbers between them, including zeros
PRIORITIES = st.one_of(st.just(0.0), st.floats(2.0**-66, 2.0**66, width=32))
# A few sizes, because JAX compiles once for each
SIZES = st.sampled_from([1, 5, 37])
PLACES = SIZES.flatmap(lambda size: st.lists(PRIORITIES, min_size=size, max_size=size)).filter(any)
NUMBERS = st.lists(st.floats(0.0, 1.0, width=32, exclude_max=True), min_size=8, max_size=8)


def torch_tree(priorities: np.ndarray) -> torch.Tensor:
    """A tree with these priorities at its first places."""
    tree = torch_priorities.Priorities(len(priorities))()
    torch_priorities.write(tree, torch.arange(len(priorities)), torch.as_tensor(priorities, dtype=tree.dtype))
    return tree


def jax_tree(priorities: np.ndarray) -> jax.Array:
    """The same tree in JAX."""
    tree = jax_priorities.no_priorities(len(priorities))
    return jax_priorities.write(tree, jnp.arange(len(priorities)), jnp.asarray(priorities, tree.dtype))


SIDES: dict[str, tuple[Callable[[np.ndarray], Any], Callable[[Any, Any], Any], Any]] = {
    "torch": (torch_tree, torch_priorities.find, torch.as_tensor),
    "jax": (jax_tree, jax_priorities.find, jnp.asarray),
}


@pytest.mark.thorough
@pytest.mark.parametrize("side", SIDES)
@settings(max_examples=30, deadline=None)
@given(priorities=PLACES, uniform=NUMBERS)
def test_a_place_without_priority_is_never_found(side: str, priorities: list[float], uniform: list[float]) -> None:
    """In single precision, however sums and differences are rounded; nor is a place after the last one."""
    make, find, array = SIDES[side]
    tree = make(np.asarray(priorities, np.float32))
    ends = np.asarray([*uniform, 0.0, np.nextafter(np.float32(1.0), np.float32(0.0))], np.float32)
    found = np.asarray(find(tree, array(ends)))
    assert found.min() >= 0
    assert found.max() < len(priorities)
    assert all(priorities[place] > 0.0 for place in found)


@settings(max_examples=30, deadline=None)
@given(priorities=PLACES, uniform=NUMBERS)
def test_both_frameworks_find_the_same(priorities: list[float], uniform: list[float]) -> None:
    """Their sums are bitwise equal."""
    values, numbers = np.asarray(priorities, np.float32), np.asarray(uniform, np.float32)
    ours, theirs = jax_tree(values), torch_tree(values)
    np.testing.assert_array_equal(ours, theirs)
    found = jax_priorities.find(ours, jnp.asarray(numbers))
    np.testing.assert_array_equal(found, torch_priorities.find(theirs, torch.as_tensor(numbers)))


@pytest.mark.parametrize("side", SIDES)
def test_rows_are_found_in_proportion(side: str) -> None:
    """Given evenly spaced numbers, each place gets its share, in the order of the places."""
    make, find, array = SIDES[side]
    with both_in("float64"):
        found = np.asarray(find(make(np.array([1.0, 0.0, 2.0, 5.0, 2.0])), array((np.arange(1000) + 0.5) / 1000)))
    np.testing.assert_array_equal(np.bincount(found, minlength=5), [100, 0, 200, 500, 200])
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 8])
def test_the_first_places_are_filled(capacity: int) -> None:
    """Every sum is that of its children, earlier priorities are gone, and later writes change the sums above."""
    filled = torch_priorities.Priorities(capacity)()
    filled[:] = 7.0
    torch_priorities.fill(filled, capacity - 1, 3.0)
    places = sum_tree.places_for(capacity)
    assert len(filled) == 2 * places
    assert places in (1, 2, 4, 8)
    assert places // 2 < capacity <= places
    assert filled[places:].tolist() == [3.0] * (capacity - 1) + [0.0] * (places - capacity + 1)
    ours = jax_priorities.fill(7.0 + jax_priorities.no_priorities(capacity), capacity - 1, 3.0)
    np.testing.assert_array_equal(ours, filled)
    torch_priorities.write(filled, torch.tensor([capacity - 1, capacity - 1]), torch.tensor([2.0, 2.0]))
    ours = jax_priorities.write(ours, jnp.array([capacity - 1, capacity - 1]), jnp.array([2.0, 2.0]))
    np.testing.assert_array_equal(ours, filled)
    assert float(filled[1]) == 3.0 * (capacity - 1) + 2.0
    assert all(filled[node] == filled[2 * node] + filled[2 * node + 1] for node in range(1, places))


def test_a_batch_of_either_buffer() -> None:
    """Numbers below the dataset's size are its rows, and further ones continue in the ring; in any order and shape."""

    def rows(first: float, number: int) -> Batch:
        column = np.arange(first, first + number, dtype=np.float32)
        return Batch(np.stack([column, -column], 1), column[:, None], column, np.stack([column] * 2, 1), column)

    dataset, seen, indices = rows(0.0, 5), rows(100.0, 3), np.array([4, 5, 0, 7, 7, 2])
    expected = [np.concatenate(pair)[indices] for pair in zip(dataset, seen, strict=True)]
    cpu = torch.device("cpu")
    theirs = torch_ring.take_either(to_torch(dataset, cpu), to_torch(seen, cpu), torch.as_tensor(indices))
    ring = jax_ring.push(
        jax_ring.Ring.create(to_device(dataset), 4, keeps_dataset=False),
        jnp.asarray(np.concatenate([np.reshape(column, (3, -1)) for column in seen], axis=1)),
    )
    ours = jax_ring.take_either(to_device(dataset), ring, jnp.asarray(indices))
    for column, torchs, jaxs in zip(expected, theirs, ours, strict=True):
        np.testing.assert_array_equal(torchs, column)
        np.testing.assert_array_equal(jaxs, column)
