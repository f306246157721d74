"""The port in ten steps: each step makes its rungs green and no other red, and the last step is the twin."""

import pytest

from lessons import carrying, pages
from lessons.ten_steps.board import GREEN, NUMBERS, ROWS

PAGE = (pages.ROOT / "docs" / "port" / "ten_steps.md").read_text()
# The most lines that a step may add or remove; the first step is a whole file.
FEW = 55


def test_every_rung_is_reached() -> None:
    """By exactly one step."""
    assert sorted(row for rows in GREEN.values() for row in rows) == sorted(ROWS)


@pytest.mark.parametrize("number", NUMBERS[1:])
def test_step_changes_a_few_lines(number: int) -> None:
    """And reverts nothing: an added line stays in the file until the last step, or is replaced once."""
    lines = [line for line in pages.changes(number) if line.startswith(("+", "-"))]
    assert 0 < len(lines) <= FEW


def test_every_step_stands_on_the_page() -> None:
    for number in NUMBERS:
        assert PAGE.count(f"<!-- lesson: step {number} -->") == 1


OLD = """import a

# A constant
RATE = 1


def update(state):
    noise = draw(state)
    first = step(state, noise)
    return second(first)
"""
STEP = OLD.replace("    first = step(state, noise)\n", "").replace("(first)", "(state)")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("noise", "drawn", STEP.replace("noise", "drawn")),
        ("    return", "    # A comment\n    return", STEP),
        ("    noise", "    # A comment\n    noise", STEP.replace("    noise", "    # A comment\n    noise")),
        ("# A constant\nRATE = 1", "RATE = 2", STEP.replace("# A constant\nRATE = 1", "RATE = 2")),
        ("first", "one", STEP),
    ],
)
def test_a_change_of_the_twin_is_carried_into_a_step(before: str, after: str, expected: str) -> None:
    """As far as the step contains the changed lines; a new line goes with the one below it."""
    texts = (text.splitlines() for text in (STEP, OLD, OLD.replace(before, after)))
    assert carrying.with_changes(*texts) == expected.splitlines()


def test_a_change_that_a_step_holds_in_part_is_left_to_its_reader() -> None:
    new = OLD.replace("    noise = draw(state)\n    first = step(state, noise)\n", "    first = step(state)\n")
    with pytest.raises(carrying.NotCarried, match="noise = draw"):
        carrying.with_changes(*(text.splitlines() for text in (STEP, OLD, new)))
