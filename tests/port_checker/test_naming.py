"""The checker names the planted mistake: every one of the library's that a port's contract reaches is counted."""

import functools
from collections.abc import Iterator

import pytest

from parity_tests.engine.caches import forget
from parity_tests.engine.precision import both_in
from parity_tests.pair import Mistake
from parity_tests.pairs import MISTAKES, PAIRS
from port_checker import check
from port_checker.explaining import naming
from port_checker.explaining.naming import RUNGS, planted
from port_checker.finding.answers import answer
from port_checker.finding.figures import TOLERANCES, Figures
from port_checker.finding.port import Port
from port_checker.finding.questions import Question

pytestmark = pytest.mark.thorough

ALGORITHMS = ("td3_bc", "cql", "awac", "iql", "dt")

# Mistakes of rungs that the checker climbs, in what a port need not have or where no figure shows them
OUTSIDE = {
    # The weight of an advantage of 0 is multiplied by 0: neither the loss nor its gradient knows it.
    ("iql", "a tie counted as a loss"),
    # The checker hands windows over; how they are taken from the data is not in the contract.
    ("dt", "steps counted from the window's start"),
    ("dt", "a window runs into the next trajectory"),
}


SMALL = ("forward", "loss")
remembered = functools.cache(answer)


@pytest.fixture(autouse=True)
def small_answers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our twin with a mistake in it is asked the same question for every other mistake, of one algorithm at a time."""

    def ask(port: Port, question: Question) -> Figures:
        return remembered(port, question) if question.rung in SMALL else answer(port, question)

    monkeypatch.setattr(check, "answer", ask)
    monkeypatch.setattr(naming, "answer", ask)
    yield
    remembered.cache_clear()
    planted.cache_clear()
    forget()


def reached(name: str) -> list[Mistake]:
    """The library's mistakes in networks, losses, updates and draws; loops are not in the contract."""
    return [m for m in MISTAKES[name] if m.rung in RUNGS and (name, m.name) not in OUTSIDE]


def climbed_with(name: str, mistake: Mistake) -> check.Climbed:
    """The last rung that the checker climbs with our twin with this mistake.

    It climbs under the default settings and under those in which the mistake shows.
    """
    with both_in("float64"):
        last = list(check.climb(planted(name, mistake), tuple(dict.fromkeys(["default", mistake.variant]))))[-1]
        # They are found when they are asked for.
        assert last.holds or last.diagnoses
        return last


@pytest.mark.parametrize("name", ALGORITHMS)
def test_planted_mistakes_are_named(name: str) -> None:
    """At least nine in ten of the whole library's."""
    alone, among, missed = [], [], []
    for mistake in reached(name):
        last = climbed_with(name, mistake)
        found = [[m.name for m in diagnosis.mistakes] for diagnosis in last.diagnoses]
        assert last.error > 100 * TOLERANCES[last.rung], f"{mistake.name} is too near to a right port: {last.error}"
        right = [names for names in found if mistake.name in names]
        (alone if right == found == [[mistake.name]] else among if right else missed).append(mistake.name)
    library, within, named = len(MISTAKES[name]), len(reached(name)), len(alone) + len(among)
    shares = f"{named / within:.0%} | {named / library:.0%}"
    print(f"\n| {name} | {library} | {within} | {named} | {shares} | {len(alone)} |")
    print(f"among others: {among}; missed: {missed}")
    assert named >= 0.9 * library, missed


def test_mistakes_outside_are_in_the_library() -> None:
    assert all(any(m.name == mistake and m.rung in RUNGS for m in MISTAKES[name]) for name, mistake in OUTSIDE)


@pytest.mark.parametrize(("name", "mistake"), sorted(OUTSIDE))
def test_what_is_outside_is_not_accused(name: str, mistake: str) -> None:
    """Up to the rung at which the ladder itself catches it."""
    (outside,) = (m for m in MISTAKES[name] if m.name == mistake)
    with both_in("float64"):
        for climbed in check.climb(planted(name, outside), ("default",)):
            assert climbed.holds
            if climbed.rung == outside.rung:
                break


@pytest.mark.parametrize("name", ALGORITHMS)
def test_our_own_twin_holds(name: str) -> None:
    """Methods of a state, under the default settings; the ladder climbs the other ones with it."""
    with both_in("float64"):
        climbed = list(check.climb(Port(name, PAIRS[name].jax, PAIRS[name]), ("default",)))
    assert [rung.rung for rung in climbed if rung.holds] == list(RUNGS)
