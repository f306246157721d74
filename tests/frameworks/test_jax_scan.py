"""Many updates in one program are the same updates as one after another."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from parity_tests.ladder.operation_counts import scans
from shared.frameworks.jax_scan import scan_updates

START = 5


def draw(step: Array) -> tuple[Array, Array]:
    """Two numbers that identify their step, as arrays of different shapes."""
    return step, jnp.stack([step, step**2])


def update(state: Array, drawn: tuple[Array, Array], place: int) -> tuple[Array, dict[str, Array]]:
    """An update that shows its number, its place and the order of all earlier ones."""
    step, powers = drawn
    metrics = {"step": step} if place else {"step": step, "first in its block": powers[1]}
    return (31 * state + powers.sum() + place) % 10007, metrics


def one_by_one(num_updates: int, period: int | None) -> tuple[Any, dict[str, list[int]]]:
    """The same updates in Python: the state, and each metric's values in order."""
    state, seen = jnp.asarray(1), {"step": [], "first in its block": []}
    for number in range(num_updates):
        state, metrics = update(state, draw(jnp.asarray(START + number)), number % (period or 1))
        for name, value in metrics.items():
            seen[name].append(int(value))
    return state, seen


@pytest.mark.parametrize("chunk", [None, 1, 2])
@pytest.mark.parametrize("period", [None, 1, 3])
@pytest.mark.parametrize("num_updates", [0, 5, 13])
def test_updates_are_those_of_a_loop(num_updates: int, period: int | None, chunk: int | None) -> None:
    """In blocks, in chunks of blocks, and the remainder that fills neither."""

    def interval(state: Array, start: Array) -> tuple[Array, list[dict[str, Array]]]:
        return scan_updates(update, draw, state, start, num_updates, period, chunk)

    state, history = jax.jit(interval)(jnp.asarray(1), jnp.asarray(START))
    expected, seen = one_by_one(num_updates, period)
    assert state == expected
    for name, values in seen.items():
        found = [np.ravel(metrics[name]) for metrics in history if name in metrics]
        np.testing.assert_array_equal(np.sort(np.concatenate([*found, []])), values)


@pytest.mark.parametrize(("chunk", "lengths"), [(None, [10]), (4, [2, 2, 4])])
def test_the_draws_of_a_chunk_are_made_at_once(chunk: int | None, lengths: list[int]) -> None:
    """20 updates in blocks of two: one loop, or two chunks of four blocks and two more blocks."""
    program = jax.make_jaxpr(lambda state, start: scan_updates(update, draw, state, start, 20, 2, chunk))(1, START)
    assert [loop.params["length"] for loop in scans(program.jaxpr)] == lengths
    drawn = max(value.aval.shape[0] for loop in scans(program.jaxpr) for value in loop.invars if value.aval.shape)
    assert drawn == (10 if chunk is None else 4)
