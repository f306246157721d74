"""The rungs of JAX's ladder without a compiler, for tests of their updates rather than their speed."""

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any

import jax
import pytest

from benchmarks import jax_rungs
from benchmarks.subjects import Subject
from parity_tests.engine.interpreter import interpreted, interpreted_jit


class Uncompiled:
    """`jax` as the rungs see it, with NumPy in place of XLA."""

    @staticmethod
    def jit(function: Callable, **options: Any) -> Callable:
        """The function, traced and computed by NumPy."""
        return interpreted(function)

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)


@cache
def fresh(twin: ModuleType, *arguments: Any) -> Any:
    """A twin's state from the key that every rung starts with."""
    key = jax.random.key(jax_rungs.WEIGHTS_SEED)
    return interpreted(lambda key: twin.create_train_state(key, *arguments))(key)


def compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the rungs compute with NumPy instead of compiling, including the interval that ships."""
    interval = jax_rungs.interval

    def uncompiled_interval(subject: Subject) -> tuple[Callable, tuple]:
        shipped, arguments = interval(subject)
        return partial(interpreted_jit(shipped.func), **shipped.keywords), arguments

    def fresh_state(subject: Subject, key: jax.Array) -> Any:
        sizes = subject.shape, subject.action_dim, subject.max_action
        return fresh(subject.pair.jax, subject.pair.jax.TrainConfig(**subject.settings), *sizes)

    monkeypatch.setattr(jax_rungs, "jax", Uncompiled())
    monkeypatch.setattr(jax_rungs, "interval", uncompiled_interval)
    monkeypatch.setattr(jax_rungs, "_fresh_state", fresh_state)
