"""Counts that explain JAX's speed: one program without branches, and one gather but no draws in its inner loop."""

from functools import cache
from typing import Any

import pytest

from parity_tests.ladder.operation_counts import count, drawn, program, scans
from parity_tests.pairs import PAIRS


@cache
def program_of(name: str) -> Any:
    """A pair's program, traced once for all counts."""
    return program(PAIRS[name], PAIRS[name].jax, PAIRS[name].counted_updates, **PAIRS[name].settings.get("counted", {}))


def loops_of(name: str) -> list[Any]:
    """The loops over updates, outer before inner."""
    found = scans(program_of(name))
    return found[: len(found) - PAIRS[name].inner_scans]


def updates_in_a_body(name: str) -> int:
    """The number of updates in the innermost loop's body."""
    *loops, inner = loops_of(name)
    outer = loops[0].params["length"] if loops else 1
    return PAIRS[name].counted_updates // (inner.params["length"] * outer)


def calls(jaxpr: Any) -> int:
    """How often a program calls the host."""
    return sum(times for name, times in count(jaxpr).items() if "callback" in name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAIRS)
def test_no_branch_is_left(name: str) -> None:
    """Everything that depends on a step's number is decided before compilation."""
    found = count(program_of(name))
    assert found["scan"]
    assert not found["cond"]
    assert not found["while"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAIRS)
def test_nothing_reaches_the_host_within_an_interval(name: str) -> None:
    """Arrays leave a program only at its end, except for callbacks; the pair says how many there are."""
    assert calls(program_of(name)) == PAIRS[name].host_calls * updates_in_a_body(name)


def test_brute_force_asks_no_host() -> None:
    """PRDC's search on the device makes no callback."""
    pair = PAIRS["prdc"]
    assert not calls(program(pair, pair.jax, pair.counted_updates, **pair.settings["on device"]))


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAIRS)
def test_the_inner_loop_only_learns(name: str) -> None:
    """It draws nothing small, and an update gathers its whole batch at once from the packed rows."""
    *_, inner = loops_of(name)
    found = count(inner.params["jaxpr"].jaxpr)
    assert PAIRS[name].draws_inside == drawn(found)
    assert found["gather"] == PAIRS[name].gathers * updates_in_a_body(name)
