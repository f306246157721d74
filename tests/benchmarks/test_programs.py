"""Counts that no clock disturbs: operations of the device in an update, and transfers to the host in a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.array import ArrayImpl

from benchmarks.programs import operations, per_update
from benchmarks.results import files
from shared.runs.machine import versions
from shared.runs.run import Run
from tests.runs.stopped_runs import train

pytestmark = pytest.mark.thorough

# Algorithms that compile in a few seconds
QUICK = ["td3_bc", "iql"]


def compiled(function: Callable[..., Any], *arguments: Any) -> str:
    """XLA's optimised text."""
    return jax.jit(function).lower(*arguments).compile().as_text()


def test_loops_count_by_their_turns() -> None:
    """A product in a loop of 7 within one of 5, and one after them."""
    matrix = jnp.ones((64, 64))

    def inner(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 7, lambda _, x: jnp.tanh(x @ matrix), x)

    def outer(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 5, lambda _, x: inner(x), x) @ matrix

    found = operations(compiled(outer, matrix))
    assert found["dot"] == 5 * 7 + 1
    assert found["while"] == 5 + 1


def test_a_loop_without_end_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match="no known number of turns"):
        operations(compiled(lambda x: jax.lax.while_loop(lambda x: x.sum() < 9.0, jnp.sin, x), jnp.ones(3)))


@pytest.mark.parametrize("name", QUICK)
def test_an_update_is_as_few_operations_as_were_measured(name: str) -> None:
    """Exact with the compiler version of a results file; another machine may be off by 2%."""
    jaxlib, gpu = versions("jaxlib")["jaxlib"], jax.default_backend() != "cpu"
    measured = [json.loads(path.read_text()) for path in files("programs")]
    alike = [
        each for each in measured if each["versions"]["jaxlib"] == jaxlib and bool(each["hardware"]["gpus"]) == gpu
    ]
    if not alike:
        pytest.skip(f"no results file counts jaxlib {jaxlib}'s operations here, and another compiler makes others")
    assert per_update(name)["all"] <= 1.02 * max(each["algorithms"][name]["all"] for each in alike)


def test_calls_hand_back_one_array_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BC's only metric for 100 updates, and the interval's mean; evaluations and checkpoints read their own arrays."""
    fetched, counting, value = [], [True], ArrayImpl._value.fget

    def counted(array: ArrayImpl) -> Any:
        if counting[0]:
            fetched.append(array)
        return value(array)

    def aside(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            counting[0] = False
            result = method(*arguments, **named)
            counting[0] = True
            return result

        return call

    monkeypatch.setattr(ArrayImpl, "_value", property(counted))
    monkeypatch.setattr(Run, "save", aside(Run.save))
    monkeypatch.setattr(Run, "evaluate", aside(Run.evaluate))
    entered = Run.__enter__
    monkeypatch.setattr(Run, "__enter__", lambda run: fetched.clear() or entered(run))
    train("jax", "any_percent_bc", tmp_path, max_timesteps=3000, eval_freq=1000, n_episodes=1)
    assert len(fetched) == 3 * (1000 // 100 + 1)
