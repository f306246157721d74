"""The directives that the extension adds to Sphinx."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import OptionSpec

from shared.frameworks.twins import FRAMEWORKS, page_of
from side_by_side.align import Misaligned, TwinPiece, TwinSection
from side_by_side.html import Page
from side_by_side.notes import NoteError
from side_by_side.pairs import Checkout, Pair

FOLDER = "side_by_side"

PAGE = """---
hide-toc: true
---
# {title}, side by side

Both files, laid beside each other when this page was built. [What the algorithm does](../algorithms/{page}.md), and how
its twins differ from CORL, has a page of its own; [how to read this one](../port/side_by_side.md), too.

```{{side-by-side}} {name}
```
"""


class SideBySideError(SphinxError):
    """The files of a pair, or the notes on them, do not fit together."""

    category = "Side by side"


def checkout(config: Config, docs: Path) -> Checkout:
    """The checkout that a build shows."""
    return Checkout((docs / config.side_by_side_root).resolve(), docs)


def write_pages(app: Sphinx) -> None:
    """Writes outdated pages of pairs, and removes pages of pairs that no longer exist.

    Raises:
        SideBySideError: A pair cannot be shown, or a note has lost its code.
    """
    docs = Path(app.srcdir)
    here = checkout(app.config, docs)
    try:
        pages = {
            docs / FOLDER / f"{page_of(name)}.md": PAGE.format(page=page_of(name), **here.pair(name)._asdict())
            for name in here.names()
        }
    except (Misaligned, NoteError) as error:
        raise SideBySideError(str(error)) from error
    (docs / FOLDER).mkdir(exist_ok=True)
    for path, content in pages.items():
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
    for path in set((docs / FOLDER).glob("*.md")) - set(pages):
        path.unlink()


def link_to_pair(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adds a link below the title of an algorithm's page; as plain Markdown on the page it would be broken."""
    folder, _, page = docname.rpartition("/")
    if folder == "algorithms" and page in map(page_of, checkout(app.config, Path(app.srcdir)).names()):
        title, _, rest = source[0].partition("\n")
        source[0] = f"{title}\n\n{{doc}}`Both files side by side </{FOLDER}/{page}>`\n{rest}"


class _Directive(SphinxDirective):
    """A directive that reads the checkout."""

    def checkout(self) -> Checkout:
        """The checkout that this build shows; a page with this directive depends on its notes."""
        here = checkout(self.config, Path(self.env.srcdir))
        self.env.note_dependency(str(here.notes_path))
        return here

    def pair(self, name: str) -> Pair:
        """A pair; the page then depends on its files."""
        here = self.checkout()
        for path in here.files(name):
            self.env.note_dependency(str(path))
        return here.pair(name)


class SideBySide(_Directive):
    """Both files of a pair, or one piece of them."""

    required_arguments = 1
    option_spec: ClassVar[OptionSpec] = {"piece": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """The sections of the page."""
        pair = self.pair(self.arguments[0])
        # Kept while a document is read, so that its pieces explain each note only once, at its first occurrence.
        page = self.env.temp_data.setdefault(f"side-by-side {pair.name}", Page(pair.name))
        if wanted := self.options.get("piece"):
            pieces = {piece.name: piece for section in pair.sections for piece in section.pieces}
            if wanted not in pieces:
                raise self.error(f"{pair.name} has no {wanted}, it has {', '.join(pieces)}")
            return [code(page, pair, pieces[wanted])]
        sections = [self._section(section, pair, page) for section in pair.sections]
        links = "".join(f'<a href="#{node["ids"][0]}">{escape(node[0].astext())}</a>' for node in sections)
        sides = "".join(f'<span class="side-name {side}">{name}</span>' for side, name in FRAMEWORKS.items())
        unfold = '<button type="button" class="unfold" aria-pressed="false">Unfold all</button>'
        bar = f'<nav class="twins-bar" aria-label="Sections"><div class="links">{links}</div>{sides}{unfold}</nav>'
        return [html(bar), *sections]

    def _section(self, section: TwinSection, pair: Pair, page: Page) -> nodes.section:
        """A section of both files, with its pieces."""
        node = self._titled(nodes.Text(section.name.capitalize()), section.name)
        codes = [code(page, pair, piece) for piece in section.pieces]
        if [piece.name for piece in section.pieces] == [section.name]:
            node += codes
            return node
        pieces = [self._titled(nodes.literal("", piece.name), piece.name) for piece in section.pieces]
        links = "".join(f'<a href="#{piece["ids"][0]}">{escape(piece[0].astext())}</a>' for piece in pieces)
        node += html(f'<div class="pieces">{links}</div>')
        for piece, lines in zip(pieces, codes, strict=True):
            piece += lines
            node += piece
        return node

    def _titled(self, title: nodes.Node, name: str) -> nodes.section:
        """An empty section with a title and a unique id."""
        node = nodes.section("", nodes.title("", "", title), names=[nodes.fully_normalize_name(name)])
        self.state.document.note_implicit_target(node, node)
        return node


class PairCards(_Directive):
    """A card for each pair, and the pairs' places in the navigation."""

    def run(self) -> list[nodes.Node]:
        """Returns the grid."""
        here = self.checkout()
        cards = "\n".join(self._card(self.pair(name)) for name in here.names())
        entries = "\n".join(f"{here.title(name)} </{FOLDER}/{page_of(name)}>" for name in here.names())
        toctree = f"```{{toctree}}\n:hidden:\n\n{entries}\n```"
        return self.parse_text_to_nodes(f"`````{{grid}} 1 2 2 3\n:gutter: 2\n\n{cards}\n`````\n\n{toctree}")

    def _card(self, pair: Pair) -> str:
        """A pair's card."""
        idioms = {found.note.name for notes in pair.notes.values() for found in notes}
        return (
            f"````{{grid-item-card}} {pair.title}\n:link: /{FOLDER}/{page_of(pair.name)}\n:link-type: doc\n\n"
            f"{len(idioms)} idioms, at {pair.noted():.0%} of what differs\n````"
        )


class Idioms(_Directive):
    """All notes, with the pairs that they are about."""

    def run(self) -> list[nodes.Node]:
        """Returns a paragraph for each note."""
        return self.parse_text_to_nodes("\n\n".join(self._entries()))

    def _entries(self) -> Iterator[str]:
        """The notes as Markdown."""
        here = self.checkout()
        for note in here.notes():
            names = [name for name in here.names() if note.concerns(name)]
            links = ", ".join(f"{{doc}}`{here.title(name)} </{FOLDER}/{page_of(name)}>`" for name in names)
            yield f"**{note.title}**: {note.text.strip()} *({'all pairs' if names == here.names() else links})*"


def code(page: Page, pair: Pair, piece: TwinPiece) -> nodes.raw:
    """A piece and its notes."""
    return html(f'<div class="twins">{page.piece(piece, pair.notes[piece.name])}</div>')


def html(text: str) -> nodes.raw:
    """Wraps raw HTML."""
    return nodes.raw("", text, format="html")
