"""Each planted mistake is caught at the rung that is named for it, because a ladder that cannot fail proves nothing."""

import pytest

from parity_tests.engine.precision import both_in
from parity_tests.ladder.rungs import RUNGS
from parity_tests.ladder.scene import Scene
from parity_tests.mutants.planted import MISTAKES, Mistake, edit_of, with_mistake
from parity_tests.pairs import PAIRS

# The factor by which a mistake exceeds a rung's tolerance, and rounding does not
FAR = 100.0


def named(mistakes: list[Mistake]) -> list:
    """Cases for a test."""
    return [pytest.param(mistake, id=f"{mistake.pair}-{mistake.name}") for mistake in mistakes]


def test_each_mistake_can_be_planted() -> None:
    """Its pattern occurs once in the twin, and no two mistakes of a pair share a name."""
    places = {(mistake.pair, mistake.name): edit_of(mistake) for mistake in MISTAKES}
    assert len(places) == len(MISTAKES)
    assert all(edit.old != edit.new for edit in places.values())


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", named(MISTAKES))
def test_mistake_is_caught(mistake: Mistake) -> None:
    """The rung fails in float64; the same rung passes without the mistake (see `test_ladder`)."""
    with both_in("float64"):
        rung = RUNGS[mistake.rung]
        scene = Scene.create(PAIRS[mistake.pair], with_mistake(mistake), mistake.variant, "cornered", rung.warm)
        found = rung.climb(scene)
    assert any(not value <= FAR * rung.float64 for value in found.values()), found
