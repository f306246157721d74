"""Equal lines are counted as `diff` counts them. The table of all pairs is on the site; nothing limits its numbers."""

from pathlib import Path

import pytest

from parity_tests.likeness import equal_lines, share, without_settings


def test_settings_are_left_out() -> None:
    """The section is removed from its heading to the next one."""
    text = "imports\n# ---- config ----\nseed = 0\n\n# ---- networks ----\nnn\n\n# ---- training ----\nloop\n"
    assert without_settings(text) == "imports\n# ---- networks ----\nnn\n\n# ---- training ----\nloop\n"
    with pytest.raises(ValueError, match="section `config`"):
        without_settings("# ---- networks ----\nnn\n")


def test_lines_are_counted_as_diff_counts_them(tmp_path: Path) -> None:
    """Moved, indented and doubled lines are not equal."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("a\nb\nc\nd\n")
    second.write_text("a\n  b\nd\nc\nd\nd\n")
    assert equal_lines(first, second) == (3, 4, 6)
    assert share(3, 4, 6) == 0.6
