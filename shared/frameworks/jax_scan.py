"""Many updates as one program: a `jax.lax.scan`, whose noise is drawn in chunks ahead of the loop."""

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
    """Makes the updates `start + 1` to `start + num_updates`; to be compiled as a part of `train_interval`.

    The scan iterates over blocks of `period` updates, each with its own place in the compiled program. Therefore work
    that is only done in every second update, for example, needs no branch. Updates outside of complete blocks follow
    the scan.

    Args:
        update: Maps a state, an update's draws and its place in the block, from 0, to the next state and its metrics.
        draw: Maps an update's number, from 0, to its draws: arrays whose shapes are always the same.
        state: The train state.
        start: The number of the first update.
        num_updates: The number of updates; static.
        period: The updates in a block; None if all updates are the same, with place 0.
        chunk: The number of blocks, or of updates without a period, whose noise is drawn at once and kept in memory;
            None for all. The default keeps the draws out of the loop, and needs little memory.
        unroll: The number of these per iteration of the compiled loop.

    Returns:
        The last state, and the metrics: a mapping for each place, with values stacked over blocks, and one for each
        update outside of complete blocks.
    """

    # Each body is a single function, whatever the chunk, so that it is traced once.
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
