"""Each algorithm's page shows a sketch of its idea."""

import re

import prose
import sketches
from derived import FIGURES, ROOT
from parity_tests.pairs import PAIRS
from shared.frameworks.twins import page_of

SHOWN = re.compile(r"!\[([^\]]+)\]\(\.\./figures/sketches/(\w+)\.svg\)\n\n\*([^*]+)\*\n\n## Usage\n")


def test_a_page_shows_its_sketch() -> None:
    """Before its usage, with a text alternative and a caption of one sentence."""
    for page in map(page_of, PAIRS):
        found = SHOWN.search((ROOT / "docs" / "algorithms" / f"{page}.md").read_text(encoding="utf-8"))
        assert found, f"{page}.md shows no sketch before its usage"
        described, sketch, caption = found.groups()
        assert sketch == page
        assert 10 <= prose.words(described) <= 40, page
        assert len(list(prose.sentences(caption))) == 1, page


def test_no_sketch_is_left_over() -> None:
    assert (
        {path.stem for path in (FIGURES / "sketches").iterdir()} == set(sketches.SKETCHES) == set(map(page_of, PAIRS))
    )
