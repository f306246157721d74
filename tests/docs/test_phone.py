"""Places where code may break on a narrow screen, and the layout of tables there; browser tests check the outcome."""

from itertools import pairwise

import pytest

from line_breaks import LONGEST, breakable, places
from tables import layout


def pieces(line: str) -> list[str]:
    """The pieces of a line of code between which it may break."""
    edges = [0, *places(line), len(line)]
    return [line[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    a = b(c, d)", ["    a ", "= ", "b(c, ", "d)"]),
        ("python x.py  # the bundled dataset", ["python ", "x.py  ", "# the ", "bundled ", "dataset"]),
        ("self.critic_target(observations)", ["self", ".critic_target(", "observations)"]),
        ("corl_jax/finetune/rebrac.py", ["corl_jax/", "finetune/", "rebrac.py"]),
        ("a_name_" * 6, ["a_", "name_"] * 6),
        ("a_name_that_is_rather_long", ["a_name_that_is_rather_long"]),
    ],
)
def test_a_line_breaks_at_blanks_and_a_long_run_at_its_punctuation(line: str, expected: list[str]) -> None:
    """A name stays whole, unless it is longer than a phone is wide."""
    assert pieces(line) == expected
    assert all(len(piece) <= LONGEST for piece in expected)


def test_tags_and_entities_are_not_broken() -> None:
    """A `<wbr>` comes before a whole character, whatever its HTML."""
    assert breakable('<span class="k">if</span> a &lt; b') == '<span class="k">if</span> <wbr>a <wbr>&lt; <wbr>b'


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([["setting", "alpha"], ["value", "2.5"]], []),
        ([["observations", "replay"], ["environments", "hopper"], ["differences", "none"]], ["cards"]),
        ([["name", "x" * 30]] * 3, ["cards", "dense"]),
        ([["algorithm", "finetune/rebrac"], *[["1", "x"]] * 12], ["dense"]),
    ],
)
def test_a_table_that_does_not_fit_becomes_cards(columns: list[list[str]], expected: list[str]) -> None:
    """Many columns get small letters on a desktop; a table of dots gets them on a phone too."""
    assert layout(columns) == expected
