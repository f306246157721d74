"""Each trap's size, measured again: what stands on its page is what comes out here."""

import re

import pytest

from lessons import measured, pages
from lessons.measured import Error
from lessons.traps import TRAPS
from parity_tests.ladder.rungs import RUNGS
from parity_tests.mutants.planted import MISTAKES

PAGE = (pages.ROOT / "docs" / "traps.md").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRAPS)
def test_trap_is_as_large_as_its_page_says(name: str) -> None:
    """To the digits printed; and the right code is at most its bound away from PyTorch, the wrong code further."""
    rows = pages.measure(TRAPS[name])
    for row in rows:
        if isinstance(row, Error):
            assert row.right <= row.bound, row
            assert row.wrong > 5.0 * row.bound, row
    assert isinstance(rows[0], Error)
    assert measured.table(rows) in PAGE


@pytest.mark.thorough
def test_single_precision_cannot_hold_on_such_a_gpu() -> None:
    """As the table says: TF32's rounding is larger than what these rungs allow."""
    tf32 = pages.measure(TRAPS["matmul_precision"])[0].wrong
    tolerances = [RUNGS[rung].float32 for rung in ("forward", "loss", "gradient", "update")]
    assert all(tolerance is not None and tolerance < tf32 for tolerance in tolerances)


@pytest.mark.thorough
def test_every_trap_stands_on_the_page() -> None:
    """Once, under its own title, with the code that is measured, and in the table."""
    for name, trap in TRAPS.items():
        assert PAGE.count(f"\n## {pages.title(trap)}\n") == 1
        assert PAGE.count(f"<!-- lesson: trap {name} -->") == 1
        assert pages.shown(trap) in PAGE
    assert pages.filled(PAGE) == PAGE


def test_planted_mistakes_have_these_names() -> None:
    """Those that the page says are planted into the twins as well."""
    (planted,) = re.findall(r"also planted into our twins.*?\):\s(.*?)\.\n", PAGE, re.DOTALL)
    names = {mistake.name for mistake in MISTAKES}
    assert set(re.findall(r"\*(.*?)\*", planted.replace("\n", " "))) <= names
