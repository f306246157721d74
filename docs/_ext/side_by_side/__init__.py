"""A Sphinx extension that shows the two files of each pair side by side.

It writes a page for each pair into `side_by_side/` when a build begins; nobody edits these pages. Directives:

- `side-by-side PAIR`: both files; with `:piece: NAME` a single class, function or method of them.
- `pair-cards`: a card for each pair.
- `idioms`: all notes, with the pairs that they are about.
"""

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from side_by_side.directives import Idioms, PairCards, SideBySide, link_to_pair, write_pages


def setup(app: Sphinx) -> ExtensionMetadata:
    """Registers the extension with Sphinx."""
    app.add_config_value("side_by_side_root", "..", "env", types=[str])
    app.add_directive("side-by-side", SideBySide)
    app.add_directive("pair-cards", PairCards)
    app.add_directive("idioms", Idioms)
    app.connect("builder-inited", write_pages)
    app.connect("source-read", link_to_pair)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
