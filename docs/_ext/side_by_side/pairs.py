"""The pairs of a checkout, with alignment and notes."""

import re
from collections.abc import Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from shared.frameworks.twins import algorithms, page_of
from side_by_side.align import Kind, Misaligned, TwinSection, align
from side_by_side.notes import Found, Note, place, read_notes
from side_by_side.source import parse

_NAMED = re.compile(r"<!-- notes: (.*?) -->", re.DOTALL)


class Pair(NamedTuple):
    """Two aligned files.

    Attributes:
        name: The algorithm's name.
        title: The title of its page in the docs.
        sections: The sections of both files.
        notes: The notes in each piece, by its name.
    """

    name: str
    title: str
    sections: tuple[TwinSection, ...]
    notes: Mapping[str, list[Found]]

    def noted(self) -> float:
        """The share of runs of different lines, without imports, that contain a line with a note."""
        runs = []
        for piece in (piece for section in self.sections for piece in section.pieces if piece.name != "imports"):
            marked = {mark.row for found in self.notes[piece.name] for mark in found.marks}
            for different, run in groupby(enumerate(piece.rows), key=lambda pair: pair[1].kind is Kind.DIFFERENT):
                runs += [bool(marked & {i for i, _ in run})] if different else []
        return sum(runs) / max(len(runs), 1)


class Checkout(NamedTuple):
    """The folders of a checkout.

    Attributes:
        root: The folder that contains `corl_torch` and `corl_jax`.
        docs: The folder of the notes, and of `algorithms` with a page for each algorithm.
    """

    root: Path
    docs: Path

    @property
    def notes_path(self) -> Path:
        """The file of all notes."""
        return self.docs / "notes.yaml"

    def names(self) -> list[str]:
        """The algorithms that exist in both frameworks."""
        return sorted(algorithms("torch", self.root).keys() & algorithms("jax", self.root).keys())

    def files(self, name: str) -> tuple[Path, Path]:
        """The two files of a pair."""
        return algorithms("torch", self.root)[name], algorithms("jax", self.root)[name]

    def page(self, name: str) -> Path:
        """An algorithm's page."""
        return self.docs / "algorithms" / f"{page_of(name)}.md"

    def title(self, name: str) -> str:
        """The title of an algorithm's page."""
        return self.page(name).read_text().splitlines()[0].removeprefix("# ")

    def named_notes(self, name: str) -> list[str]:
        """The notes that an algorithm's page names, in a comment `<!-- notes: ... -->`."""
        found = _NAMED.search(self.page(name).read_text())
        return found[1].split() if found else []

    def notes(self) -> list[Note]:
        """All notes.

        Raises:
            NoteError: One is not well formed.
        """
        return read_notes(self.notes_path, {name: self.named_notes(name) for name in self.names()})

    def pair(self, name: str) -> Pair:
        """A pair with its notes.

        Raises:
            Misaligned: Its files cannot be aligned.
            NoteError: A note has lost its code, or a difference has no note.
        """
        texts = tuple(path.read_text() for path in self.files(name))
        try:
            sections = _aligned(*texts)
        except Misaligned as error:
            raise Misaligned(f"{name}: {error}") from None
        return Pair(name, self.title(name), sections, _placed(tuple(self.notes()), name, *texts))


# ---- content shared by several pages ---------------------------------------------------------------------------------


@cache
def _aligned(torch: str, jax: str) -> tuple[TwinSection, ...]:
    """The sections of two files."""
    return tuple(align(parse(torch), parse(jax)))


@cache
def _placed(notes: tuple[Note, ...], name: str, torch: str, jax: str) -> Mapping[str, list[Found]]:
    """The notes in each piece of two files."""
    return place(notes, name, _aligned(torch, jax))
