"""A ladder that cannot fail proves nothing: each planted mistake must be caught, at the rung that is named for it."""

import pytest

from parity_tests.engine.precision import both_in
from parity_tests.ladder.rungs import RUNGS
from parity_tests.ladder.scene import Scene
from parity_tests.pair import Mistake, with_mistake
from parity_tests.pairs import MISTAKES, PAIRS

pytestmark = pytest.mark.thorough

CASES = [pytest.param(name, m, id=f"{name}-{m.name}") for name, mistakes in MISTAKES.items() for m in mistakes]


# Beyond a rung's tolerance: what a mistake is off by, and no compiler
FAR = 100.0


@pytest.mark.parametrize(("name", "mistake"), CASES)
def test_mistake_is_caught(name: str, mistake: Mistake) -> None:
    """The rung fails in float64; the same rung passes without the mistake (see `test_ladder`)."""
    pair = PAIRS[name]
    with both_in("float64"):
        rung = RUNGS[mistake.rung]
        scene = Scene.create(pair, with_mistake(pair, mistake), mistake.variant, "cornered", rung.warm)
        found = rung.climb(scene)
    assert any(not value <= FAR * rung.float64 for value in found.values()), found


@pytest.mark.parametrize("name", PAIRS)
def test_there_are_enough_mistakes(name: str) -> None:
    """At least ten for each pair."""
    assert len({mistake.name for mistake in MISTAKES[name]}) >= 10
