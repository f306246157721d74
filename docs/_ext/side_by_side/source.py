"""Parses a twin's file into sections and pieces of coloured lines."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from pygments import lex
from pygments.lexers import PythonLexer
from pygments.token import STANDARD_TYPES, Token

_RULE = re.compile(r"# ---- (.+?) -+$")
_WORD = re.compile(r"\w+|\s+|[^\w\s]+")


@dataclass(frozen=True)
class Line:
    """One line of code: its number in the file, and its tokens as pairs of a Pygments class and a text."""

    number: int
    tokens: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The line without its end."""
        return "".join(text for _, text in self.tokens)

    def dedented(self, width: int) -> Self:
        """The line without its first `width` characters, which must be blank."""
        tokens = list(self.tokens)
        while tokens and width:
            kind, text = tokens.pop(0)
            if text[width:]:
                tokens.insert(0, (kind, text[width:]))
            width -= min(width, len(text))
        return replace(self, tokens=tuple(tokens))


@dataclass(frozen=True)
class Piece:
    """A class, a function, a method or a run of assignments, with the comments and decorators above it.

    Attributes:
        name: The name that it defines; for an assignment, the first name.
        owner: The class that a method belongs to.
        lines: Its lines, moved to the left margin.
    """

    name: str
    owner: str | None
    lines: tuple[Line, ...]

    @property
    def label(self) -> str:
        """Its name, after its class's name if it has one."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


@dataclass(frozen=True)
class Section:
    """The code below one of the file's rules."""

    name: str
    pieces: tuple[Piece, ...]


def parse(text: str) -> list[Section]:
    """Parses a file's sections; everything above the first rule is called `imports`.

    Raises:
        SyntaxError: The text is not Python.
    """
    lines = coloured(text)
    rules = [(line.number, match[1]) for line in lines if (match := _RULE.match(line.text))]
    tops = [0, *(number for number, _ in rules)]
    names = ["imports", *(name for _, name in rules)]
    ends = [*(number for number, _ in rules), len(lines) + 1]
    nodes = ast.parse(text).body
    sections = []
    for name, top, end in zip(names, tops, ends, strict=True):
        inside = [node for node in nodes if top < node.lineno < end]
        pieces = [Piece(name, None, _span(lines, 0, end - 1))] if top == 0 else _pieces(inside, lines, top)
        sections.append(Section(name, tuple(map(_at_the_margin, pieces))))
    return sections


def coloured(text: str) -> list[Line]:
    """The lines of a whole file, lexed at once, so that a multi-line string is a string in each of its lines."""
    lines, tokens = [], []
    for kind, part in lex(text, PythonLexer(stripnl=False, ensurenl=False)):
        css = STANDARD_TYPES.get(kind, STANDARD_TYPES.get(kind.parent, ""))
        for i, fragment in enumerate(part.split("\n")):
            if i:
                lines.append(Line(len(lines) + 1, tuple(tokens)))
                tokens = []
            # Split into words, so that a changed word in a comment or a string can be marked by itself.
            tokens += [("" if kind in Token.Text else css, word) for word in _WORD.findall(fragment)]
    return lines if not tokens else [*lines, Line(len(lines) + 1, tuple(tokens))]


def _pieces(nodes: list[ast.stmt], lines: list[Line], top: int) -> Iterator[Piece]:
    """Yields the pieces below line number `top`; the class with an `update` method is split into its methods."""
    for node in _merged(nodes):
        if isinstance(node[0], ast.ClassDef) and "update" in (methods := _methods(node[0])):
            yield from _class_pieces(node[0], methods, lines, top)
        else:
            yield Piece(_name(node[0]), None, _span(lines, top, node[-1].end_lineno))
        top = node[-1].end_lineno


def _merged(nodes: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Groups statements that follow each other without a blank line."""
    groups: list[list[ast.stmt]] = []
    for node in nodes:
        if groups and node.lineno == groups[-1][-1].end_lineno + 1:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """A class's methods without its constructor."""
    methods = {child.name: child for child in node.body if isinstance(child, ast.FunctionDef)}
    methods.pop("__init__", None)
    return methods


def _class_pieces(
    node: ast.ClassDef, methods: dict[str, ast.FunctionDef], lines: list[Line], top: int
) -> Iterator[Piece]:
    """A class's head, up to its constructor or its last field, and each of its methods."""
    others = [child.end_lineno for child in node.body if child not in methods.values()]
    end = max(others)
    yield Piece(node.name, None, _span(lines, top, end))
    for name, method in methods.items():
        yield Piece(name, node.name, _span(lines, end, method.end_lineno))
        end = method.end_lineno


def _name(node: ast.stmt) -> str:
    """The names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.name
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return ast.unparse(target.elts[0] if isinstance(target, ast.Tuple) else target)
    return "command line"


def _span(lines: list[Line], after: int, last: int) -> tuple[Line, ...]:
    """The lines after number `after` up to number `last`, without blank lines at either end."""
    span = lines[after:last]
    filled = [i for i, line in enumerate(span) if line.text.strip()]
    return tuple(span[filled[0] : filled[-1] + 1])


def _at_the_margin(piece: Piece) -> Piece:
    """Removes the indentation that all lines of a piece share."""
    margin = min(len(line.text) - len(line.text.lstrip()) for line in piece.lines if line.text.strip())
    return replace(piece, lines=tuple(line.dedented(margin) for line in piece.lines))
