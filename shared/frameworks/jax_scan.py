"""Many updates as one program: their noise is drawn in chunks ahead of the loop, which is a `jax.lax.scan`."""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

State = TypeVar("State")
Metrics = dict[str, Array]


def scan_updates(
    update: Callable[[State, Any, int], tuple[State, Metrics]],
    draw: Callable[[Array], Any],
    state: State,
    start: Array,
    num_updates: int,
    period: int | None = None,
    chunk: int | None = 100,
    unroll: int = 1,
) -> tuple[State, list[Metrics]]:
    """The updates `start + 1` to `start + num_updates`, to be compiled as a part of `train_interval`.

    The scan walks over blocks of `period` updates, each with a place of its own in the compiled program. So what
    happens in every second update only, say, needs no branch. Updates that fill no block follow behind the scan.

    Args:
        update: From a state, an update's draw and its place to the state after it and its metrics. The place is the
            number of updates in the block before it.
        draw: From an update's number, counted from 0, to whatever it draws: arrays whose shapes are always the same.
        state: The train state.
        start: The number of the first update.
        num_updates: How many; known when the program is compiled.
        period: The updates of a block; None where all updates are alike, which then have the place 0.
        chunk: Blocks, or updates that are alike, whose noise is drawn at once and held in memory; None for all. By
            default enough to leave the draws outside the loop, few enough to fit into any memory.
        unroll: As many of them in one pass of the compiled loop.

    Returns:
        The state after all, and the metrics. The metrics are a mapping for each place, its values stacked over blocks,
        and one for each update that filled no block.
    """

    # Each body is one function, whatever the chunk, so that it is traced once.
    def alone(state: State, draws: Any) -> tuple[State, Metrics]:
        return update(state, draws, 0)

    def block(state: State, draws: Any, length: int = period or 1) -> tuple[State, list[Metrics]]:
        history: list[Metrics] = []
        for place in range(length):
            state, metrics = update(state, jax.tree.map(itemgetter(place), draws), place)
            history.append(metrics)
        return state, history

    def drawn(state: State, first: Array, length: int) -> tuple[State, list[Metrics]]:
        draws = jax.vmap(draw)(first + jnp.arange(length))
        if period is None:
            state, metrics = jax.lax.scan(alone, state, draws, unroll=unroll)
            return state, [metrics]
        history: list[Metrics] = []
        if whole := length - length % period:
            blocks = jax.tree.map(lambda values: values[:whole].reshape(-1, period, *values.shape[1:]), draws)
            state, history = jax.lax.scan(block, state, blocks, unroll=unroll)
        state, remainder = block(state, jax.tree.map(lambda values: values[whole:], draws), length - whole)
        return state, history + remainder

    whole = 0
    history: list[Metrics] = []
    if chunk is not None:
        length = chunk * (period or 1)
        whole = num_updates - num_updates % length
    if whole:
        state, history = jax.lax.scan(partial(drawn, length=length), state, start + jnp.arange(0, whole, length))
    if rest := num_updates - whole:
        state, remainder = drawn(state, start + whole, rest)
        history = history + remainder
    return state, history
