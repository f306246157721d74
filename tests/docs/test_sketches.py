"""Each algorithm's page shows a sketch of its idea, as the code draws it."""

import re
from pathlib import Path

import pytest

import prose
import sketches
from parity_tests.pairs import PAIRS
from shared.frameworks.twins import page_of

SHOWN = re.compile(r"!\[([^\]]+)\]\(sketches/(\w+)\.svg\)\n\n\*([^*]+)\*\n\n## Usage\n")


def shown(page: Path) -> tuple[str, str, str]:
    """The sketch at the end of a page's introduction: its alternative text, its name and its caption."""
    found = SHOWN.search(page.read_text(encoding="utf-8"))
    assert found, f"{page.name} shows no sketch before its usage"
    return found[1], found[2], found[3]


@pytest.mark.parametrize("name", list(PAIRS))
def test_a_page_shows_its_sketch(name: str) -> None:
    """With a text for those who cannot see it, and a caption of one sentence."""
    described, sketch, caption = shown(sketches.DOCS / f"{page_of(name)}.md")
    assert sketch == page_of(name)
    assert sketch in sketches.SKETCHES
    assert 10 <= prose.words(described) <= 40
    assert len(list(prose.sentences(caption))) == 1


@pytest.mark.parametrize("name", sketches.SKETCHES)
def test_a_sketch_is_as_it_is_drawn(name: str) -> None:
    """`python docs/_ext/sketches.py` draws it anew."""
    assert (sketches.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == sketches.drawn(name)


def test_no_sketch_is_left_over() -> None:
    assert {path.stem for path in sketches.FOLDER.iterdir()} == set(sketches.SKETCHES) == set(map(page_of, PAIRS))
