"""The HTML of a pair's pieces: code beside code, and notes below."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from line_breaks import breakable
from shared.frameworks.twins import FRAMEWORKS
from side_by_side.align import Kind, Row, TwinPiece
from side_by_side.notes import SIDES, Found, Note
from side_by_side.source import Line, Piece

# A run of equal lines is folded if that hides at least `WORTH_FOLDING` lines, all except `CONTEXT` at its borders.
CONTEXT = 2
WORTH_FOLDING = 8

_markdown = MarkdownIt()


def _code_inline(_: RendererHTML, tokens: Sequence[Token], index: int, *__: object) -> str:
    """Renders code in a note's sentence, with the same line breaks as all code."""
    return f"<code>{breakable(escape(tokens[index].content))}</code>"


_markdown.add_render_rule("code_inline", _code_inline)


class Block(NamedTuple):
    """Rows that are shown together.

    Attributes:
        rows: The rows.
        summary: The text shown while they are folded; None if they are not folded.
    """

    rows: Sequence[Row]
    summary: str | None


@dataclass
class Page:
    """The notes that a page has shown so far: each is numbered, and explained at its first occurrence.

    Attributes:
        pair: The algorithm's name.
        numbers: The number of each note that the page has shown.
    """

    pair: str
    numbers: dict[str, int] = field(default_factory=dict)

    def piece(self, piece: TwinPiece, notes: Sequence[Found]) -> str:
        """Renders a piece: a head that names it in both files, its lines, and its notes."""
        new = {found.note.name for found in notes} - set(self.numbers)
        for found in notes:
            self.numbers.setdefault(found.note.name, len(self.numbers) + 1)
        markers = self._markers(notes, new)
        alone = "" if piece.torch and piece.jax else " alone"
        body = "".join(_block(piece.name, block, markers) for block in blocks(piece))
        return (
            f'<div class="piece{alone}" data-piece="{escape(piece.name)}">{self._head(piece)}'
            f"{body}{self._notes(piece, notes, new)}</div>"
        )

    def _head(self, piece: TwinPiece) -> str:
        """Renders the places of both sides of the piece."""
        return '<div class="head">' + "".join(self._place(side, getattr(piece, side)) for side in SIDES) + "</div>"

    def _place(self, side: str, piece: Piece | None) -> str:
        """Renders the place of one side of the piece."""
        file = f"corl_{side}/{self.pair}.py"
        if piece is None:
            return f'<div class="place {side} missing">no counterpart in {file}</div>'
        first, last = piece.lines[0].number, piece.lines[-1].number
        lines = str(first) if first == last else f"{first}-{last}"
        return (
            f'<div class="place {side}"><b>{FRAMEWORKS[side]}</b> '
            f'<span class="file">{breakable(f"{file}:{lines}")}</span> '
            f"<code>{breakable(escape(piece.label))}</code></div>"
        )

    def _markers(self, notes: Iterable[Found], new: set[str]) -> dict[tuple[str, int], str]:
        """The links to notes at the end of each annotated line, by side and line number."""
        markers: dict[tuple[str, int], str] = {}
        for found in notes:
            name, title = found.note.name, escape(plain(found.note.title))
            for mark in found.marks:
                place = mark.side, mark.line
                anchor = f' id="mark-{name}"' if name in new and mark is found.marks[0] else ""
                markers[place] = markers.get(place, "") + (
                    f'<a class="marker" href="#note-{name}"{anchor} title="{title}" '
                    f'aria-label="Note {self.numbers[name]}: {title}">{self.numbers[name]}</a>'
                )
        return markers

    def _notes(self, piece: TwinPiece, notes: Sequence[Found], new: set[str]) -> str:
        """The texts of the notes that the page shows here for the first time, and the titles of the others."""
        if not notes:
            return ""
        items = "".join(
            self._explained(found.note) if found.note.name in new else self._recalled(found.note) for found in notes
        )
        return f'<aside class="notes" aria-label="Notes on {escape(piece.name)}">{items}</aside>'

    def _explained(self, note: Note) -> str:
        """A note with its text, which is the target of a marker's link, and a link back."""
        number = self.numbers[note.name]
        back = f'<a class="back" href="#mark-{note.name}" aria-label="Back to the code of note {number}">↩</a>'
        return (
            f'<div class="note" id="note-{note.name}" tabindex="-1"><span class="number">{number}</span>'
            f'<div><p class="title">{inline(note.title)} {back}</p>{_markdown.render(note.text)}</div></div>'
        )

    def _recalled(self, note: Note) -> str:
        """A note whose text is further up on the page."""
        return (
            f'<div class="note again"><span class="number">{self.numbers[note.name]}</span>'
            f'<p class="title"><a href="#note-{note.name}">{inline(note.title)}</a></p></div>'
        )


def blocks(piece: TwinPiece) -> Iterator[Block]:
    """A piece's rows; long runs without a difference are folded, except for a few lines next to differences.

    Imports are folded completely, because a page is not about them.
    """
    if piece.name == "imports":
        yield Block(piece.rows, f"{len(piece.torch.lines)} lines in PyTorch, {len(piece.jax.lines)} in JAX")
        return
    same_runs = groupby(piece.rows, key=lambda row: row.kind is not Kind.DIFFERENT)
    runs = [(same, list(run)) for same, run in same_runs]
    shown: list[Row] = []
    for i, (same, run) in enumerate(runs):
        first, last = CONTEXT if i else 0, len(run) - (CONTEXT if i < len(runs) - 1 else 0)
        if same and last - first >= WORTH_FOLDING:
            if shown := [*shown, *run[:first]]:
                yield Block(shown, None)
            yield Block(run[first:last], f"{last - first} lines, equal in both")
            shown = run[last:]
        else:
            shown = [*shown, *run]
    if shown:
        yield Block(shown, None)


def plain(title: str) -> str:
    """A title without its Markdown."""
    return title.replace("`", "")


def inline(title: str) -> str:
    """A title's Markdown as HTML."""
    return _markdown.renderInline(title)


def _block(name: str, block: Block, markers: Mapping[tuple[str, int], str]) -> str:
    """Rows as two columns of lines; each column is contiguous, so that its lines can be selected."""
    columns = "".join(_column(name, side, block.rows, markers) for side in SIDES)
    twin = f'<div class="twin highlight">{columns}</div>'
    return f'<details class="fold"><summary>{block.summary}</summary>{twin}</details>' if block.summary else twin


def _column(name: str, side: str, rows: Sequence[Row], markers: Mapping[tuple[str, int], str]) -> str:
    """One side of a block, with gaps where it has no line.

    Each line contains its row, for two columns, and its run of equal or different rows, for a single column.
    """
    lines = []
    for run, (kind, numbered) in enumerate(groupby(enumerate(rows, start=1), key=lambda pair: pair[1].kind)):
        for number, row in numbered:
            if line := getattr(row, side):
                whole = kind is Kind.DIFFERENT and row.changed is None
                changed = row.changed[SIDES.index(side)] if row.changed else frozenset()
                classes = f"line {kind.value}{' whole' if whole else ''}"
                position = f"--row:{number};--run:{run}"
                lines.append(_line(line, classes, position, changed, markers.get((side, line.number), "")))
    if not lines:
        return ""
    label = f"{escape(name)} in {FRAMEWORKS[side]}"
    return f'<pre class="side {side}" role="group" aria-label="{label}">{"".join(lines)}</pre>'


def _line(line: Line, classes: str, position: str, changed: frozenset[int], marker: str) -> str:
    """A coloured line of code with its number, and with the tokens that differ marked."""
    indent = len(line.text) - len(line.text.lstrip())
    code = breakable("".join(_coloured(line, changed)))
    markers = f'<span class="markers">{marker}</span>' if marker else ""
    return (
        f'<span class="{classes}" style="{position};--indent:{indent}"><span class="ln">{line.number}</span>'
        f'<span class="src">{code}\n</span>{markers}</span>'
    )


def _coloured(line: Line, changed: frozenset[int]) -> Iterator[str]:
    """Yields runs of a line's tokens with the same colour and mark, as HTML."""
    tokens = [(*token, _is_marked(i, line, changed)) for i, token in enumerate(line.tokens)]
    for (css, _, marked), run in groupby(tokens, key=lambda token: (token[0], "", token[2])):
        text, classes = escape("".join(text for _, text, _ in run)), f"{css} changed".strip() if marked else css
        yield f'<span class="{classes}">{text}</span>' if classes else text


def _is_marked(i: int, line: Line, changed: frozenset[int]) -> bool:
    """Whether a token differs; a blank counts as different if both its neighbours do."""
    return {i - 1, i + 1} <= changed if line.tokens[i][1].isspace() else i in changed
