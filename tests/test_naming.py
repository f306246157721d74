"""The checker names the planted mistake: every one of the library's that a port's contract reaches is counted."""

import functools

import pytest

from parity_tests import check
from parity_tests.checker import naming
from parity_tests.checker.answers import answer
from parity_tests.checker.figures import Figures
from parity_tests.checker.naming import RUNGS, planted
from parity_tests.checker.port import Port
from parity_tests.checker.questions import Question
from parity_tests.pair import Mistake
from parity_tests.pairs import MISTAKES
from parity_tests.precision import both_in

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
def small_answers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our twin with a mistake in it is asked the same question for every other mistake."""

    def ask(port: Port, question: Question) -> Figures:
        return remembered(port, question) if question.rung in SMALL else answer(port, question)

    monkeypatch.setattr(check, "answer", ask)
    monkeypatch.setattr(naming, "answer", ask)


def reached(name: str) -> list[Mistake]:
    """The library's mistakes in networks, losses and updates; draws and loops are not in the contract."""
    return [m for m in MISTAKES[name] if m.rung in RUNGS and (name, m.name) not in OUTSIDE]


def named_for(name: str, mistake: Mistake) -> list[list[str]]:
    """What the checker names in our twin with this mistake: for each diagnosis, the mistakes.

    It climbs under the default settings and under those in which the mistake shows.
    """
    with both_in("float64"):
        climbed = list(check.climb(planted(name, mistake), tuple(dict.fromkeys(["default", mistake.variant]))))
    return [[m.name for m in diagnosis.mistakes] for diagnosis in climbed[-1].diagnoses]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_planted_mistakes_are_named(name: str) -> None:
    """At least nine in ten of those that the contract reaches."""
    alone, among, missed = [], [], []
    for mistake in reached(name):
        found = named_for(name, mistake)
        right = [names for names in found if mistake.name in names]
        (alone if right == found == [[mistake.name]] else among if right else missed).append(mistake.name)
    total, named = len(reached(name)), len(alone) + len(among)
    print(f"\n| {name} | {len(MISTAKES[name])} | {total} | {named} ({named / total:.0%}) | {len(alone)} |")
    print(f"among others: {among}; missed: {missed}")
    assert named >= 0.9 * total, missed


def test_mistakes_outside_are_in_the_library() -> None:
    assert all(any(m.name == mistake and m.rung in RUNGS for m in MISTAKES[name]) for name, mistake in OUTSIDE)


@pytest.mark.parametrize(("name", "mistake"), sorted(OUTSIDE))
def test_what_is_outside_is_not_accused(name: str, mistake: str) -> None:
    (outside,) = (m for m in MISTAKES[name] if m.name == mistake)
    assert not named_for(name, outside)
