"""JAX's rungs: each function makes a block of updates, and differs from the previous one in one change.

A block runs a subject's updates and returns the state, from which the next block continues. Updates are numbered from
the start of the block in every rung, so that all rungs draw the same batches and the same noise.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import torch

from benchmarks.subjects import Subject
from shared.frameworks import jax_data, jax_side, torch_data

DRAWS_SEED, WEIGHTS_SEED = 1, 0


def _config(subject: Subject) -> Any:
    return subject.pair.jax.TrainConfig(**subject.settings)


def _fresh_state(subject: Subject, key: jax.Array) -> Any:
    sizes = subject.shape, subject.action_dim, subject.max_action
    return subject.pair.jax.create_train_state(key, _config(subject), *sizes)


def _draw(subject: Subject, state: Any, key: jax.Array, step: jax.Array, statics: dict[str, Any]) -> tuple[Any, Any]:
    """The twin's draws for an update, numbered from 0."""
    inputs = subject.pair.draw_inputs(subject.columns, subject.action_dim)
    return subject.pair.jax.draw_noise(key, step, state.hp, *inputs, **statics)


def _one_by_one(subject: Subject, updates: Callable[[Any, int], tuple[Any, Any]]) -> Callable[[], Any]:
    """Makes a Python loop that calls a program for each update."""
    holder = {"state": _fresh_state(subject, jax.random.key(WEIGHTS_SEED))}

    def block() -> Any:
        for step in range(subject.updates):
            holder["state"], metrics = updates(holder["state"], step)
        return jax.block_until_ready((holder["state"], metrics))[0]

    return block


def _statics(subject: Subject, config: Any, step: int) -> tuple[tuple, tuple]:
    """The names and values of the static arguments for an update, numbered from 0, for its draws and its own."""
    statics = subject.pair.draw_statics(config, step + 1), subject.pair.update_statics(config, step + 1)
    return tuple(statics[0].items()), tuple(statics[1].items())


def host_batches(subject: Subject) -> Callable[[], Any]:
    """Calls a program for each update, on a batch that the host gathers from its own memory."""
    pair, twin, config = subject.pair, subject.pair.torch, _config(subject)
    key = jax.random.key(DRAWS_SEED)
    dataset = pair.ready(twin, torch_data.to_device(subject.columns, torch.device("cpu")), config)

    @cache
    def programs(draw_statics: tuple, update_statics: tuple) -> tuple[Callable, Callable]:
        draw = jax.jit(lambda state, step: _draw(subject, state, key, step, dict(draw_statics)))
        return draw, jax.jit(lambda *args: args[0].update(*args[1:], **dict(update_statics)), donate_argnums=0)

    def update(state: Any, step: int) -> tuple[Any, Any]:
        draw, learn = programs(*_statics(subject, config, step))
        indices, noise = draw(state, step)
        rows = pair.take(twin, dataset, torch.as_tensor(np.array(indices)), config)
        return learn(state, jax.tree.map(lambda column: column.numpy(), rows), noise, *pair.number(step + 1))

    return _one_by_one(subject, update)


def host_draws(subject: Subject) -> Callable[[], Any]:
    """Calls a program for each update, on rows that the host also draws; the program draws only its noise.

    This is how OGBench's own loop trains its goal-conditioned algorithms.
    """
    pair, twin, config = subject.pair, subject.pair.torch, _config(subject)
    key, dataset = jax.random.key(DRAWS_SEED), torch_data.to_device(subject.columns, torch.device("cpu"))
    draw = pair.torch_draws(twin.TrainConfig(**subject.settings), subject.columns, subject.action_dim, "cpu")
    few = jax.tree.map(lambda column: column[:2], subject.columns)

    @partial(jax.jit, donate_argnums=0)
    def learn(state: Any, batch: Any, step: jax.Array) -> tuple[Any, Any]:
        # The compiler leaves out the rows, because nothing uses them.
        _, noise = pair.jax.draw_noise(key, step, state.hp, *pair.draw_inputs(few, subject.action_dim))
        return state.update(batch, noise)

    def update(state: Any, step: int) -> tuple[Any, Any]:
        rows = pair.take(twin, dataset, draw()[0], config)
        return learn(state, jax.tree.map(lambda column: column.numpy(), rows), step)

    return _one_by_one(subject, update)


def device_batches(subject: Subject) -> Callable[[], Any]:
    """Calls a program for each update, which draws and gathers its batch on the device."""
    pair, config = subject.pair, _config(subject)
    key = jax.random.key(DRAWS_SEED)
    dataset = pair.ready(pair.jax, jax_data.to_device(subject.columns), config)

    @cache
    def program(draw_statics: tuple, update_statics: tuple) -> Callable:
        @partial(jax.jit, donate_argnums=0)
        def update(state: Any, key: jax.Array, dataset: Any, step: jax.Array, *number: jax.Array) -> tuple[Any, Any]:
            indices, noise = _draw(subject, state, key, step, dict(draw_statics))
            batch = pair.take(pair.jax, dataset, indices, config)
            return state.update(batch, noise, *number, **dict(update_statics))

        return update

    def update(state: Any, step: int) -> tuple[Any, Any]:
        learn = program(*_statics(subject, config, step))
        return learn(state, key, dataset, step, *pair.number(step + 1))

    return _one_by_one(subject, update)


def interval(subject: Subject) -> tuple[partial[Any], tuple]:
    """The twin's compiled interval with its static arguments, and its other arguments."""
    pair, config = subject.pair, _config(subject)
    statics = pair.interval_statics(config, 0, subject.updates)
    state = _fresh_state(subject, jax.random.key(WEIGHTS_SEED))
    dataset = pair.ready(pair.jax, jax_data.to_device(subject.columns), config)
    arguments = state, jax.random.key(DRAWS_SEED), dataset, 0
    return partial(pair.jax.train_interval, num_updates=subject.updates, **statics), arguments


def scan(subject: Subject) -> Callable[[], Any]:
    """The default path: all updates of an interval as one program."""
    train, (state, *rest) = interval(subject)
    holder = {"state": state}

    def block() -> Any:
        holder["state"], history = train(holder["state"], *rest)
        return jax.block_until_ready((holder["state"], jax_side.mean_metrics(history)))[0]

    return block


def seeds(count: int, subject: Subject) -> Callable[[], Any]:
    """Trains `count` runs in one program, each with its own weights and draws: the interval under `vmap`."""
    train, (_, _, dataset, start) = interval(subject)
    states = jax.vmap(partial(_fresh_state, subject))(seed_keys(WEIGHTS_SEED, count))
    holder, keys = {"states": states}, seed_keys(DRAWS_SEED, count)

    @partial(jax.jit, donate_argnums=0)
    def train_all(states: Any, keys: jax.Array, dataset: Any) -> tuple[Any, Any]:
        states, history = jax.vmap(train, in_axes=(0, 0, None, None))(states, keys, dataset, start)
        return states, history

    def block() -> Any:
        holder["states"], history = train_all(holder["states"], keys, dataset)
        return jax.block_until_ready((holder["states"], jax.vmap(jax_side.mean_metrics)(history)))[0]

    return block


def seed_keys(seed: int, count: int) -> jax.Array:
    """A key for each run; the first one is the key of a single run."""
    return jax.vmap(jax.random.key)(seed + 1000 * np.arange(count))
