"""Why the JAX side is fast, as counts: one program, no branch in it, no draw and a single gather in its inner loop."""

import pytest

from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from parity_tests.program import count, drawn, program, scans

NUM_UPDATES = 200


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_no_branch_is_left(pair: Pair) -> None:
    """What a step's number decides was decided before compilation."""
    found = count(program(pair, pair.jax, NUM_UPDATES))
    assert found["scan"]
    assert not found["cond"]
    assert not found["while"]


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_nothing_reaches_the_host_within_an_interval(pair: Pair) -> None:
    """Arrays leave a program at its end only, unless it calls back."""
    assert not [name for name in count(program(pair, pair.jax, NUM_UPDATES)) if "callback" in name]


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_the_inner_loop_only_learns(pair: Pair) -> None:
    """It draws nothing that is small, and an update gathers its batch at once from the packed rows."""
    *loops, inner = scans(program(pair, pair.jax, NUM_UPDATES))
    found = count(inner.params["jaxpr"].jaxpr)
    assert pair.draws_inside == drawn(found)
    outer = loops[0].params["length"] if loops else 1
    updates_in_a_body = NUM_UPDATES // (inner.params["length"] * outer)
    assert found["gather"] == pair.gathers * updates_in_a_body
