"""Counts the operations in the program that JAX compiles an interval of updates into."""

from collections import Counter
from functools import partial
from types import ModuleType
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from parity_tests.ladder.scene import bundled_rows
from parity_tests.pair import Pair
from shared.frameworks import jax_data


def equations(jaxpr: Any) -> list:
    """All equations of a program, including its inner programs."""
    inner = [e for equation in jaxpr.eqns for p in jaxprs_in_params(equation.params) for e in equations(p)]
    return [*jaxpr.eqns, *inner]


def scans(jaxpr: Any) -> list:
    """All scans of a program, outer before inner."""
    return [equation for equation in equations(jaxpr) if equation.primitive.name == "scan"]


def count(jaxpr: Any) -> Counter[str]:
    """How often each primitive occurs in a program."""
    return Counter(equation.primitive.name for equation in equations(jaxpr))


def drawn(counted: Counter[str]) -> bool:
    """Whether the program draws random numbers."""
    return any(name.startswith(("random", "threefry")) for name in counted)


def program(pair: Pair, twin: ModuleType, num_updates: int, **settings: Any) -> Any:
    """The program for an interval of `num_updates` updates, with the twin's default settings except the given ones."""
    config, rows = twin.TrainConfig(**settings), bundled_rows()
    dataset = pair.ready(twin, jax_data.to_device(pair.load(rows)), config)
    state_dim, action_dim = rows["observations"].shape[1], rows["actions"].shape[1]
    # Shapes are enough, and drawing weights would take seconds.
    create = partial(twin.create_train_state, config=config, state_dim=state_dim, action_dim=action_dim, max_action=1.0)
    state = jax.eval_shape(create, jax.random.key(0))
    statics = pair.interval_statics(config, 0, num_updates)

    def interval(state: Any, key: Any) -> Any:
        return twin.train_interval(state, key, dataset, 0, num_updates, **statics)

    return jax.make_jaxpr(interval)(state, jax.random.key(1)).jaxpr
