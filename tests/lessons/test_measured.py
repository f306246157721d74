"""The measurements of the teaching pages, measured once for all tests in this file."""

import pytest

import derived
from lessons import pages
from lessons.measured import Error
from lessons.ten_steps.board import GREEN, NUMBERS, ROWS, climb
from lessons.traps import TRAPS
from parity_tests.ladder.rungs import RUNGS


@pytest.mark.thorough
def test_pages_show_what_is_measured() -> None:
    """And the code that they are measured with."""
    assert derived.named(derived.lessons) == "", "run `make derived`, and commit what it writes"


@pytest.mark.thorough
@pytest.mark.parametrize("number", NUMBERS)
def test_step_turns_its_rungs_green(number: int) -> None:
    """The rungs that the page names, which were red; all others stay as they were."""
    green = {row for row in ROWS if climb(number, row).green}
    before = {row for row in ROWS if number > 1 and climb(number - 1, row).green}
    assert green == before | set(GREEN[number])
    assert not before & set(GREEN[number])


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRAPS)
def test_trap_is_one_and_its_mending_mends(name: str) -> None:
    """The right code differs from PyTorch by at most the trap's bound, and the wrong code by more."""
    rows = pages.measure(TRAPS[name])
    for row in rows:
        if isinstance(row, Error):
            assert row.right <= row.bound, row
            assert row.wrong > 5.0 * row.bound, row
    assert isinstance(rows[0], Error)


@pytest.mark.thorough
def test_single_precision_cannot_hold_on_such_a_gpu() -> None:
    """As the table says, because TF32's rounding is larger than these rungs allow."""
    tf32 = pages.measure(TRAPS["matmul_precision"])[0].wrong
    tolerances = [rung.float32 for rung in RUNGS.values() if rung.float32 is not None]
    assert tolerances
    assert max(tolerances) < tf32
