"""The twins stay alike: their diff is the lesson, so most of it must be what the frameworks differ in."""

from pathlib import Path

from parity_tests.likeness import equal_lines, mean_share, share


def test_at_least_half_of_the_lines_are_equal() -> None:
    """On average over the pairs."""
    assert mean_share() >= 0.5


def test_lines_are_counted_as_diff_counts_them(tmp_path: Path) -> None:
    """Moved, indented and doubled lines are not equal."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("a\nb\nc\nd\n")
    second.write_text("a\n  b\nd\nc\nd\nd\n")
    assert equal_lines(first, second) == (3, 4, 6)
    assert share(3, 4, 6) == 0.6
