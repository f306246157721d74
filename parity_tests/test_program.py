"""Why the JAX side is fast, as counts: one program, no branch in it, no draw and a single gather in its inner loop."""

from collections import Counter
from typing import Any

import jax
import pytest
from jax.extend.core import jaxprs_in_params

from parity_tests.ladder import bundled_rows
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared import jax_side

NUM_UPDATES = 200


def equations(jaxpr: Any) -> list:
    """All equations of a program, those of inner programs included."""
    inner = [e for equation in jaxpr.eqns for p in jaxprs_in_params(equation.params) for e in equations(p)]
    return [*jaxpr.eqns, *inner]


def scans(jaxpr: Any) -> list:
    """All scans of a program, outer before inner."""
    return [equation for equation in equations(jaxpr) if equation.primitive.name == "scan"]


def program(pair: Pair) -> Any:
    """The program of an interval under default settings."""
    twin, config = pair.jax, pair.jax.TrainConfig()
    dataset = jax_side.to_device(pair.load(bundled_rows()))
    (state_dim,), (action_dim,), *_ = dataset.shapes
    state = twin.create_train_state(jax.random.key(0), config, state_dim, action_dim, 1.0)
    statics = pair.interval_statics(config, 0, NUM_UPDATES)

    def interval(state: Any, key: Any) -> Any:
        return twin.train_interval(state, key, dataset, 0, NUM_UPDATES, **statics)

    return jax.make_jaxpr(interval)(state, jax.random.key(1)).jaxpr


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_no_branch_is_left(pair: Pair) -> None:
    """What a step's number decides was decided before compilation."""
    names = {equation.primitive.name for equation in equations(program(pair))}
    assert "scan" in names
    assert not names & {"cond", "while"}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_the_inner_loop_only_learns(pair: Pair) -> None:
    """It draws nothing that is small, and an update gathers its batch at once from the packed rows."""
    inner = scans(program(pair))[-1]
    found = Counter(equation.primitive.name for equation in equations(inner.params["jaxpr"].jaxpr))
    assert pair.draws_inside == any(name.startswith(("random", "threefry")) for name in found)
    loops = [scan for scan in scans(program(pair)) if scan is not inner]
    outer = loops[0].params["length"] if loops else 1
    updates_in_a_body = NUM_UPDATES // (inner.params["length"] * outer)
    assert found["gather"] == pair.gathers * updates_in_a_body
