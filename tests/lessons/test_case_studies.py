"""Published mistakes, rebuilt: their symptoms match their page, and each check finds its mistake quickly."""

import time
from collections.abc import Callable

import jax.numpy as jnp
import optax
import pytest

from lessons import pages
from lessons.case_studies import CASES
from parity_tests.engine.precision import both_in

PAGE = (pages.ROOT / "docs" / "port" / "case_studies.md").read_text()


@pytest.mark.parametrize("name", CASES)
def test_check_finds_the_mistake_within_a_second(name: str) -> None:
    """It fails the wrong code and passes the right one; time that other jobs take does not count."""
    case = CASES[name]
    with both_in("float64"):
        start = time.process_time()
        with pytest.raises(AssertionError):
            case.check(case.wrong)
        seconds = time.process_time() - start
        case.check(case.right)
    assert seconds < 1.0


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (lambda step: 1.0 - 0.02 * step, "does not rise"),
        (lambda step: jnp.minimum((step + 1) / 10, (29 - step) / 20), "does not stay"),
    ],
)
def test_the_warm_up_must_rise_and_then_stay(rate: Callable, message: str) -> None:
    """The published mistake does neither; a schedule that fails in only one way is found too."""
    with both_in("float64"), pytest.raises(AssertionError, match=message):
        CASES["warm_up"].check(lambda *_: optax.adamw(rate))


def test_every_case_stands_on_the_page() -> None:
    """Once, under its own title; `make derived` fills in the measurements."""
    for name, case in CASES.items():
        assert PAGE.count(f"\n## {pages.title(case)}\n") == 1
        assert PAGE.count(f"<!-- lesson: case {name} -->") == 1
