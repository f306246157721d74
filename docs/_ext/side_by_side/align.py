"""Aligns the sections, pieces and lines of two twins."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum
from itertools import zip_longest

from side_by_side.source import Line, Piece, Section

# Counterparts that have different names in the contract, because a trainer is mutated and a state is replaced
COUNTERPARTS = {"create_train_state": "create_trainer"}

# Words that mean the same everywhere; a line that differs in nothing else teaches nothing
RENAMED = {("Tensor", "Array")}

# Lines with at least this similarity, as difflib measures it, are shown as one changed line.
ALIKE = 0.6


class Misaligned(Exception):
    """Both files contain a name, but at places that cannot be aligned."""


class Kind(Enum):
    """How the two lines of a row compare."""

    EQUAL = "equal"
    RENAMED = "renamed"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Row:
    """A line of each twin, or of one.

    Attributes:
        changed: For each side, the tokens that differ; None if the lines are unrelated.
    """

    torch: Line | None
    jax: Line | None
    kind: Kind
    changed: tuple[frozenset[int], frozenset[int]] | None = None


@dataclass(frozen=True)
class TwinPiece:
    """A piece of each twin, or of one, with its lines aligned."""

    torch: Piece | None
    jax: Piece | None
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Its name, which is PyTorch's if both sides have one."""
        return (self.torch or self.jax).name

    @property
    def differs(self) -> bool:
        """Whether any line differs in more than words that mean the same."""
        return any(row.kind is Kind.DIFFERENT for row in self.rows)


@dataclass(frozen=True)
class TwinSection:
    """A section of both twins."""

    name: str
    pieces: tuple[TwinPiece, ...]


def align(torch: list[Section], jax: list[Section]) -> list[TwinSection]:
    """Aligns the sections of two twins.

    Raises:
        Misaligned: The twins do not have the same sections in the same order, or a section contains a name of both at
            places that cannot be aligned.
    """
    names = [section.name for section in torch], [section.name for section in jax]
    if names[0] != names[1]:
        raise Misaligned(f"sections {names[0]} in PyTorch, {names[1]} in JAX: they must be the same")
    return [
        TwinSection(left.name, tuple(_pieces(left.pieces, right.pieces)))
        for left, right in zip(torch, jax, strict=True)
    ]


def _pieces(torch: Sequence[Piece], jax: Sequence[Piece]) -> Iterator[TwinPiece]:
    """The pieces of a section, aligned by equal names."""
    keys = [_key(piece) for piece in torch], [_key(piece) for piece in jax]
    unmatched: tuple[set[str], set[str]] = (set(), set())
    for tag, left, right in _opcodes(*keys):
        if tag == "equal":
            pairs = zip(torch[left], jax[right], strict=True)
        else:
            pairs = [*((piece, None) for piece in torch[left]), *((None, piece) for piece in jax[right])]
            unmatched[0].update(keys[0][left])
            unmatched[1].update(keys[1][right])
        for pair in pairs:
            yield TwinPiece(*pair, tuple(_rows(*(piece.lines if piece else () for piece in pair))))
    if common := unmatched[0] & unmatched[1]:
        raise Misaligned(f"{sorted(common)}: in another order in JAX than in PyTorch")


def _key(piece: Piece) -> str:
    """The key for matching pieces; a constant and a function with the same name count as the same thing."""
    return COUNTERPARTS.get(piece.name, piece.name).casefold()


def _rows(torch: Sequence[Line], jax: Sequence[Line]) -> Iterator[Row]:
    """The lines of a piece: equal lines aligned, then similar ones, and the others in order."""
    texts = [line.text for line in torch], [line.text for line in jax]
    for tag, left, right in _opcodes(*texts):
        if tag == "equal":
            yield from (Row(*pair, Kind.EQUAL) for pair in zip(torch[left], jax[right], strict=True))
        else:
            yield from _changed(torch[left], jax[right])


def _opcodes(torch: list[str], jax: list[str]) -> Iterator[tuple[str, slice, slice]]:
    """Runs of equal and of unequal entries; blank lines and single brackets do not count as matches."""
    matcher = SequenceMatcher(lambda entry: len(entry.strip()) < 2, torch, jax, autojunk=False)
    for tag, first, last, other_first, other_last in matcher.get_opcodes():
        yield tag, slice(first, last), slice(other_first, other_last)


def _changed(torch: Sequence[Line], jax: Sequence[Line]) -> Iterator[Row]:
    """Rows of lines that differ."""
    left = right = 0
    for i, j in [*_similar(torch, jax), (len(torch), len(jax))]:
        for pair in zip_longest(torch[left:i], jax[right:j]):
            yield Row(*pair, Kind.DIFFERENT)
        if i < len(torch):
            yield _marked(torch[i], jax[j])
        left, right = i + 1, j + 1


def _similar(torch: Sequence[Line], jax: Sequence[Line]) -> list[tuple[int, int]]:
    """The pairs of lines, in the order of both sides, with the largest total similarity."""
    alike = _likeness(torch, jax)
    best = [[(0.0, (0, 0))] * (len(jax) + 1) for _ in range(len(torch) + 1)]
    for i in reversed(range(len(torch))):
        for j in reversed(range(len(jax))):
            likeness = alike[j][i]
            skip_torch, skip_jax, both = best[i + 1][j][0], best[i][j + 1][0], best[i + 1][j + 1][0] + likeness
            if likeness and both >= max(skip_torch, skip_jax):
                best[i][j] = (both, (1, 1))
            else:
                best[i][j] = (skip_torch, (1, 0)) if skip_torch >= skip_jax else (skip_jax, (0, 1))
    pairs, i, j = [], 0, 0
    while i < len(torch) and j < len(jax):
        step = best[i][j][1]
        if step == (1, 1):
            pairs.append((i, j))
        i, j = i + step[0], j + step[1]
    return pairs


def _likeness(torch: Sequence[Line], jax: Sequence[Line]) -> list[list[float]]:
    """For each line of JAX, its similarity to each line of PyTorch: a share of characters, or 0."""
    # difflib prepares the second text once and compares many texts with it.
    matcher = SequenceMatcher(None, autojunk=False)
    # The first two are cheap upper bounds of the third.
    ratios = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    found = []
    for line in jax:
        matcher.set_seq2(line.text.strip())
        found.append([])
        for other in torch:
            matcher.set_seq1(other.text.strip())
            found[-1].append(matcher.ratio() if all(ratio() >= ALIKE for ratio in ratios) else 0.0)
    return found


def _marked(torch: Line, jax: Line) -> Row:
    """A row of similar lines, with the tokens that differ."""
    texts = [text for _, text in torch.tokens], [text for _, text in jax.tokens]
    changed: tuple[set[int], set[int]] = (set(), set())
    for tag, *spans in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if tag != "equal":
            changed[0].update(range(*spans[:2]))
            changed[1].update(range(*spans[2:]))
    words = zip(*([text[i] for i in sorted(side)] for text, side in zip(texts, changed, strict=True)), strict=False)
    renamed = len(changed[0]) == len(changed[1]) and all(pair in RENAMED for pair in words)
    kind = Kind.RENAMED if renamed else Kind.DIFFERENT
    return Row(torch, jax, kind, (frozenset(changed[0]), frozenset(changed[1])))
