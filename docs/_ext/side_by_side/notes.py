"""Notes on differences: read from a YAML file, and located in the lines of a pair.

A note names an idiom. It searches for a line in the PyTorch twin and for one in the JAX twin, and must find both. Prose
about code that no longer exists is worse than none.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from side_by_side.align import RENAMED, Kind, TwinPiece, TwinSection
from side_by_side.source import Piece

SIDES = ("torch", "jax")


class NoteError(Exception):
    """A note is not well formed, or has lost its code; the message starts with the note's name."""


@dataclass(frozen=True)
class Note:
    """An explanation of a difference between the twins.

    Attributes:
        name: Its key in the file.
        title: The idiom in either framework.
        text: A few sentences in Markdown.
        torch: A regular expression for a line of the PyTorch twin; None if the idiom has no line there.
        jax: The same for the JAX twin.
        pairs: The pairs that it is about, whose pages name it; None means all.
        without: Pairs that have no such line.
        within: The pieces to search; None means all.
        apart: Whether the two lines may be in pieces that are not aligned.
    """

    name: str
    title: str
    text: str
    torch: str | None = None
    jax: str | None = None
    pairs: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    within: tuple[str, ...] | None = None
    apart: bool = False

    def concerns(self, pair: str) -> bool:
        """Whether it is about this pair."""
        return pair not in self.without and (self.pairs is None or pair in self.pairs)


class Mark(NamedTuple):
    """A line that carries a note: its row in the piece, its side and its number in the file."""

    row: int
    side: str
    line: int


class Found(NamedTuple):
    """A note and the lines of a piece that it marks, from top to bottom, PyTorch's first."""

    note: Note
    marks: tuple[Mark, ...]


def read_notes(path: Path, named: Mapping[str, Sequence[str]]) -> list[Note]:
    """Reads the notes in a file.

    Args:
        path: The file.
        named: For each pair, the notes that its page names.

    Raises:
        NoteError: A note lacks a title, a text or a pattern, or has an unknown key. Or a note is for pages that name
            it, but none does. Or a page names a note that is not for such pages.
    """
    entries = _entries(path.read_text())
    for pair, names in named.items():
        if unknown := [name for name in names if not entries.get(name, {}).get("named")]:
            raise NoteError(f"{pair}: its page names {unknown}, which are no notes for pages that name them")
    return [_note(name, entry, named) for name, entry in entries.items()]


@cache
def _entries(text: str) -> Mapping[str, dict[str, Any]]:
    """Reads a file's notes; cached, because a build needs them for every piece of code."""
    return yaml.safe_load(text)


def _note(name: str, entry: dict[str, Any], named: Mapping[str, Sequence[str]]) -> Note:
    """One note of the file."""
    known = {field.name for field in fields(Note)} - {"name", "pairs"} | {"named"}
    if unknown := set(entry) - known:
        raise NoteError(f"{name}: unknown {sorted(unknown)}, known are {sorted(known)}")
    if missing := {"title", "text"} - set(entry):
        raise NoteError(f"{name}: lacks {sorted(missing)}")
    if not set(SIDES) & set(entry):
        raise NoteError(f"{name}: has neither a pattern for torch nor one for jax")
    values = {key: value for key, value in entry.items() if key != "named"}
    values |= {key: tuple(entry[key]) for key in ("within", "without") if key in entry}
    if entry.get("named"):
        values["pairs"] = tuple(pair for pair, names in named.items() if name in names)
        if not values["pairs"]:
            raise NoteError(f"{name}: no page names it")
    for side in SIDES:
        try:
            re.compile(entry.get(side, ""))
        except re.error as error:
            raise NoteError(f"{name}: the pattern for {side} is no regular expression: {error}") from None
    return Note(name, **values)


def place(notes: Sequence[Note], pair: str, sections: Sequence[TwinSection]) -> dict[str, list[Found]]:
    """Locates the notes in each piece of a pair, by the piece's name, in the order of their lines.

    Raises:
        NoteError: A note's lines do not occur among lines that differ, or a piece that differs has no note.
    """
    pieces = [piece for section in sections for piece in section.pieces]
    placed: dict[str, list[Found]] = {piece.name: [] for piece in pieces}
    for note in notes:
        if note.concerns(pair):
            for piece, found in _find(note, pair, pieces):
                placed[piece.name].append(found)
    for piece in pieces:
        placed[piece.name].sort(key=lambda found: found.marks[0].row)
        if piece.differs and not placed[piece.name] and _essence(piece.torch) != _essence(piece.jax):
            raise NoteError(f"{pair}: no note says how the twins differ in {piece.name}")
    return placed


def _essence(piece: Piece | None) -> list[str] | None:
    """A piece's lines in sorted order, without comments or the names of its own variables; None if there are no lines.

    A renamed local variable, a comment or two exchanged lines are not an idiom of a framework.
    """
    if piece is None:
        return None
    try:
        tree = ast.parse("\n".join(line.text for line in piece.lines))
    except SyntaxError:  # the head of a class whose methods are pieces of their own
        return [line.text for line in piece.lines]
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for node in names:
        node.id = "_" if node.id in bound else dict(RENAMED).get(node.id, node.id)
    return sorted(ast.unparse(tree).splitlines())


def _find(note: Note, pair: str, pieces: Sequence[TwinPiece]) -> Iterator[tuple[TwinPiece, Found]]:
    """Yields the pieces that a note is about."""
    seen: set[str] = set()
    for piece in pieces:
        if note.within is None or piece.name in note.within:
            marks = tuple(_marks(note, piece))
            expected = {side for side in SIDES if getattr(note, side) and getattr(piece, side)}
            matched = {mark.side for mark in marks}
            if matched and (note.apart or matched == expected):
                seen |= matched
                yield piece, Found(note, marks)
    if lost := [side for side in SIDES if getattr(note, side) and side not in seen]:
        patterns = " and ".join(f"{getattr(note, side)!r} in {side}" for side in lost)
        raise NoteError(f"{note.name}: {pair} has no line that differs and matches {patterns}")


def _marks(note: Note, piece: TwinPiece) -> Iterator[Mark]:
    """Yields, in each run of rows that differ, the first line of either side that matches."""
    for different, run in groupby(enumerate(piece.rows), key=lambda numbered: numbered[1].kind is Kind.DIFFERENT):
        rows = list(run) if different else []
        for side in SIDES:
            if pattern := getattr(note, side):
                lines = ((i, getattr(row, side)) for i, row in rows)
                matches = (Mark(i, side, line.number) for i, line in lines if line and re.search(pattern, line.text))
                yield from islice(matches, 1)
