"""Why the JAX side is fast, as counts: one program, no branch in it, no draw and a single gather in its inner loop."""

from functools import cache
from typing import Any

import pytest

from parity_tests.ladder.operation_counts import count, drawn, program, scans
from parity_tests.pairs import PAIRS


@cache
def program_of(name: str) -> Any:
    """Each pair's, traced once for all that is counted in it."""
    return program(PAIRS[name], PAIRS[name].jax, PAIRS[name].counted_updates, **PAIRS[name].settings.get("counted", {}))


def updates_in_a_body(name: str) -> int:
    """How many updates the innermost loop's body holds."""
    *loops, inner = scans(program_of(name))
    outer = loops[0].params["length"] if loops else 1
    return PAIRS[name].counted_updates // (inner.params["length"] * outer)


def calls(jaxpr: Any) -> int:
    """How often a program calls the host."""
    return sum(times for name, times in count(jaxpr).items() if "callback" in name)


@pytest.mark.parametrize("name", PAIRS)
def test_no_branch_is_left(name: str) -> None:
    """What a step's number decides was decided before compilation."""
    found = count(program_of(name))
    assert found["scan"]
    assert not found["cond"]
    assert not found["while"]


@pytest.mark.parametrize("name", PAIRS)
def test_nothing_reaches_the_host_within_an_interval(name: str) -> None:
    """Arrays leave a program at its end only, unless it calls back; the pair says how often."""
    assert calls(program_of(name)) == PAIRS[name].host_calls * updates_in_a_body(name)


def test_brute_force_asks_no_host() -> None:
    """PRDC's search on the device."""
    pair = PAIRS["prdc"]
    assert not calls(program(pair, pair.jax, pair.counted_updates, **pair.settings["on device"]))


@pytest.mark.parametrize("name", PAIRS)
def test_the_inner_loop_only_learns(name: str) -> None:
    """It draws nothing that is small, and an update gathers its batch at once from the packed rows."""
    *_, inner = scans(program_of(name))
    found = count(inner.params["jaxpr"].jaxpr)
    assert PAIRS[name].draws_inside == drawn(found)
    assert found["gather"] == PAIRS[name].gathers * updates_in_a_body(name)
