"""The checker names planted mistakes: every kind that a port's contract covers."""

import functools
from collections.abc import Iterator

import pytest

from parity_tests.engine.caches import forget
from parity_tests.engine.precision import both_in
from parity_tests.mutants.planted import KINDS, Mistake, mistakes_of
from parity_tests.pairs import PAIRS
from port_checker import check
from port_checker.explaining import naming
from port_checker.explaining.naming import RUNGS, planted
from port_checker.finding.answers import answer
from port_checker.finding.figures import TOLERANCES, Figures
from port_checker.finding.port import Port
from port_checker.finding.questions import Question

pytestmark = pytest.mark.thorough

# Together, these have a mistake of each kind.
ALGORITHMS = ("td3_bc", "cql", "awac", "dt")
SMALL = ("forward", "loss")
remembered = functools.cache(answer)


@pytest.fixture(autouse=True)
def small_answers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our twin with a mistake gets the same question for every other mistake, for one algorithm at a time."""

    def ask(port: Port, question: Question) -> Figures:
        return remembered(port, question) if question.rung in SMALL else answer(port, question)

    monkeypatch.setattr(check, "answer", ask)
    monkeypatch.setattr(naming, "answer", ask)
    yield
    remembered.cache_clear()
    planted.cache_clear()
    forget()


def reached(name: str) -> list[Mistake]:
    """Planted mistakes in networks, losses, updates and draws; loops are not in the contract.

    The first of each kind that no algorithm before this one has.
    """
    found: dict[str, Mistake] = {}
    for mistake in (m for algorithm in ALGORITHMS for m in mistakes_of(algorithm) if m.rung in RUNGS):
        found.setdefault(next(kind for kind, mistakes in KINDS.items() if mistake in mistakes), mistake)
    return [mistake for mistake in found.values() if mistake.pair == name]


def climbed_with(port: Port, variant: str = "default") -> check.Climbed:
    """The last rung that the checker climbs with a port, under the default settings and these."""
    with both_in("float64"):
        last = list(check.climb(port, tuple(dict.fromkeys(["default", variant]))))[-1]
        # Diagnoses are computed when they are read.
        assert last.holds or last.diagnoses
        return last


@pytest.mark.parametrize("name", ALGORITHMS)
def test_planted_mistakes_are_named(name: str) -> None:
    """With the settings under which they show."""
    assert reached(name)
    for mistake in reached(name):
        last = climbed_with(planted(mistake), mistake.variant)
        assert last.error > 100 * TOLERANCES[last.rung], f"{mistake.name} is too near to a right port: {last.error}"
        assert any(mistake in diagnosis.mistakes for diagnosis in last.diagnoses), (mistake.name, last.diagnoses)


@pytest.mark.parametrize("name", ["cql", "dt"])
def test_our_own_twin_holds(name: str) -> None:
    """As methods of a state, under the default settings; the ladder covers the others."""
    with both_in("float64"):
        climbed = list(check.climb(Port(name, PAIRS[name].jax, PAIRS[name]), ("default",)))
    assert [rung.rung for rung in climbed if rung.holds] == list(RUNGS)
