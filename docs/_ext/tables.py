"""A Sphinx extension that turns a table that is too wide for a phone into cards, one for each row.

Each cell contains its column's title. The style sheet lays out the cards, and then shows the titles next to the cells.
"""

import re
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

# The number of unbreakable characters that fit side by side on a phone and on a desktop, with two for a cell's padding
PHONE, DESK = 40, 72
# The longest text that is readable in one of three or more narrow columns
LONGEST = 40
# The longest text of which a card shows three side by side
FIGURE = 14
# The longest word in columns that are narrow enough for a dense table on a phone, such as columns of dots
TINY = 2


class Labels(SphinxPostTransform):
    """Labels all cells, and sets the layout of each table that does not fit.

    A table with the class `cards` does not fit on a phone, and one with the class `dense` has small letters. A cell
    with
    the class `wide` takes a card's whole width.
    """

    formats = ("html",)
    default_priority = 400

    def run(self, **_: Any) -> None:
        """Processes each table in a document."""
        for table in self.document.findall(nodes.table):
            columns = list(zip(*(row.children for row in table.findall(nodes.row)), strict=True))
            for title, *cells in columns:
                wide = ["wide"] if max(len(cell.astext()) for cell in cells) > FIGURE else []
                for cell in cells:
                    cell["label"] = title.astext()
                    cell["classes"] += wide
            table["classes"] += layout([[cell.astext() for cell in column] for column in columns])


def layout(columns: list[list[str]]) -> list[str]:
    """The classes of a table with these columns, each of which starts with its title."""
    words = [max(len(word) for cell in column for word in re.split(r"[\s/]", cell)) for column in columns]
    width = sum(words) + 2 * len(words)
    longest = max(len(cell) for column in columns for cell in column[1:])
    if width <= PHONE and (len(columns) < 3 or longest <= LONGEST):
        return []
    if max(words[1:]) <= TINY:
        return ["dense"]
    return ["cards", "dense"] if width > DESK else ["cards"]


def _cell(translator: HTML5Translator, node: nodes.entry) -> None:
    """Writes a cell with its column's title."""
    opened = len(translator.body)
    HTML5Translator.visit_entry(translator, node)
    if label := node.get("label"):
        translator.body[opened] = translator.body[opened].replace("<td", f'<td data-label="{escape(label)}"', 1)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Registers the extension with Sphinx."""
    app.add_post_transform(Labels)
    app.add_node(nodes.entry, override=True, html=(_cell, HTML5Translator.depart_entry))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
