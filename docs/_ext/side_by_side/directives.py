"""What the extension adds to Sphinx."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective

from side_by_side.align import Misaligned, TwinSection
from side_by_side.html import FRAMEWORKS, Page
from side_by_side.notes import NoteError
from side_by_side.pairs import Checkout, Pair

FOLDER = "side_by_side"

PAGE = """---
hide-toc: true
---
# {title}, side by side

Both files, laid beside each other when this page was built. [What the algorithm does](../{name}.md), and how its twins
differ from CORL, has a page of its own; [how to read this one](../side_by_side.md), too.

```{{side-by-side}} {name}
```
"""


class SideBySideError(SphinxError):
    """The files of a pair, or the notes on them, do not fit together."""

    category = "Side by side"


def checkout(config: Config, docs: Path) -> Checkout:
    """The checkout that a build is about."""
    return Checkout((docs / config.side_by_side_root).resolve(), docs)


def write_pages(app: Sphinx) -> None:
    """Writes the page of each pair, where it is not what it should be, and removes those of pairs that are gone.

    Raises:
        SideBySideError: A pair cannot be shown, or a note has lost its code.
    """
    docs = Path(app.srcdir)
    here = checkout(app.config, docs)
    try:
        pages = {docs / FOLDER / f"{name}.md": PAGE.format(**here.pair(name)._asdict()) for name in here.names()}
    except (Misaligned, NoteError) as error:
        raise SideBySideError(str(error)) from error
    (docs / FOLDER).mkdir(exist_ok=True)
    for path, content in pages.items():
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
    for path in set((docs / FOLDER).glob("*.md")) - set(pages):
        path.unlink()


def link_to_pair(app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts a link below the title of an algorithm's page, which as plain Markdown would lead nowhere."""
    if docname in checkout(app.config, Path(app.srcdir)).names():
        title, _, rest = source[0].partition("\n")
        source[0] = f"{title}\n\n{{doc}}`Both files side by side <{FOLDER}/{docname}>`\n{rest}"


class _Directive(SphinxDirective):
    """A directive that reads the checkout."""

    def checkout(self) -> Checkout:
        """The checkout that this build is about; a page with this directive depends on its notes."""
        here = checkout(self.config, Path(self.env.srcdir))
        self.env.note_dependency(str(here.notes_path))
        return here

    def pair(self, name: str) -> Pair:
        """A pair, on whose files the page depends then."""
        here = self.checkout()
        for path in here.files(name):
            self.env.note_dependency(str(path))
        return here.pair(name)

    def parsed(self, text: str) -> list[nodes.Node]:
        """What Markdown says."""
        return self.parse_text_to_nodes(text)


class SideBySide(_Directive):
    """Both files of a pair, or one piece of them."""

    required_arguments = 1
    option_spec = {"piece": directives.unchanged}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """The sections of the page."""
        pair = self.pair(self.arguments[0])
        page = Page(pair.name)
        if wanted := self.options.get("piece"):
            pieces = [piece for section in pair.sections for piece in section.pieces if piece.name == wanted]
            return [html(f'<div class="twins">{page.piece(piece, pair.notes[piece.name])}</div>') for piece in pieces]
        sections = [self._section(section, pair, page) for section in pair.sections]
        links = "".join(f'<a href="#{node["ids"][0]}">{escape(node[0].astext())}</a>' for node in sections)
        sides = "".join(f'<span class="side-name {side}">{name}</span>' for side, name in FRAMEWORKS.items())
        unfold = '<button type="button" class="unfold" aria-pressed="false">Unfold all</button>'
        bar = f'<nav class="twins-bar" aria-label="Sections"><div class="links">{links}</div>{sides}{unfold}</nav>'
        return [html(bar), *sections]

    def _section(self, section: TwinSection, pair: Pair, page: Page) -> nodes.section:
        """A section of both files with its pieces."""
        node = self._titled(nodes.Text(section.name.capitalize()), section.name)
        codes = [html(f'<div class="twins">{page.piece(one, pair.notes[one.name])}</div>') for one in section.pieces]
        if [piece.name for piece in section.pieces] == [section.name]:
            node += codes
            return node
        pieces = [self._titled(nodes.literal("", piece.name), piece.name) for piece in section.pieces]
        links = "".join(f'<a href="#{sub["ids"][0]}">{escape(sub[0].astext())}</a>' for sub in pieces)
        node += html(f'<div class="pieces">{links}</div>')
        for sub, code in zip(pieces, codes, strict=True):
            sub += code
            node += sub
        return node

    def _titled(self, title: nodes.Node, name: str) -> nodes.section:
        """An empty section with a title, and an id that no other has."""
        node = nodes.section("", nodes.title("", "", title), names=[nodes.fully_normalize_name(name)])
        self.state.document.note_implicit_target(node, node)
        return node


class PairCards(_Directive):
    """A card for each pair, and their places in the navigation."""

    def run(self) -> list[nodes.Node]:
        """The grid."""
        here = self.checkout()
        cards = "\n".join(self._card(self.pair(name)) for name in here.names())
        entries = "\n".join(f"{self.pair(name).title} </{FOLDER}/{name}>" for name in here.names())
        toctree = f"```{{toctree}}\n:hidden:\n\n{entries}\n```"
        return self.parsed(f"`````{{grid}} 1 2 2 3\n:gutter: 2\n\n{cards}\n`````\n\n{toctree}")

    def _card(self, pair: Pair) -> str:
        """A pair's card."""
        idioms = {found.note.name for notes in pair.notes.values() for found in notes}
        return (
            f"````{{grid-item-card}} {pair.title}\n:link: /{FOLDER}/{pair.name}\n:link-type: doc\n\n"
            f"{len(idioms)} idioms\n````"
        )


class Idioms(_Directive):
    """All notes, with the pairs that they are about."""

    def run(self) -> list[nodes.Node]:
        """A paragraph for each note."""
        return self.parsed("\n\n".join(self._entries()))

    def _entries(self) -> Iterator[str]:
        """The notes as Markdown."""
        here = self.checkout()
        for note in here.notes():
            names = [name for name in here.names() if note.concerns(name)]
            where = "all pairs" if names == here.names() else ", ".join(self._link(name) for name in names)
            yield f"**{note.title}**: {note.text.strip()} *({where})*"

    def _link(self, name: str) -> str:
        """A link to a pair's page."""
        return f"{{doc}}`{name} </{FOLDER}/{name}>`"


def html(text: str) -> nodes.raw:
    """HTML as it is."""
    return nodes.raw("", text, format="html")
