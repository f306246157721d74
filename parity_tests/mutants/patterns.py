"""A change that is anchored in a function's syntax, not in its text.

A pattern is an expression or a few statements. In it, a name that begins with an underscore stands for any expression,
which must be the same wherever the name occurs. Therefore variables may be renamed and lines broken differently. A
single `_` stands for anything.
"""

import ast
import textwrap
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from parity_tests.mutants.syntax import Source

# Fields of a node that do not affect what it computes
MUTE = {"ctx", "kind", "type_comment", "type_params"}


@dataclass(frozen=True)
class Edit:
    """Replaces the text of a node.

    Attributes:
        line: The number of the first line that it changes.
        start: The position of the text in the source.
        old: That text.
        new: Its replacement.
        within: Whether it is an expression within a statement.
    """

    line: int
    start: int
    old: str
    new: str
    within: bool

    def applied(self, source: str) -> str:
        """The source with the change applied; shorter text is padded, so that later lines keep their numbers."""
        padded = self.new + "\n" * (self.old.count("\n") - self.new.count("\n"))
        return source[: self.start] + (f"({padded})" if self.within else padded) + source[self.start + len(self.old) :]


def edit(text: str, function: str, pattern: str, replacement: str) -> Edit:
    """Finds a pattern in a source and makes the edit that replaces it.

    Args:
        text: The source.
        function: The function to search, such as `TD3_BC.critic_loss`; empty for the whole source.
        pattern: Must occur exactly once.
        replacement: The mistake that a tired person might make; empty to delete statements.

    Raises:
        ValueError: There is no such function, the pattern does not occur once, or the replacement has an unknown name.
    """
    source, wanted, instead = Source(text), _parsed(pattern), _parsed(replacement)
    within = isinstance(wanted[0], ast.expr)
    root = _definition(source.tree, function)
    found = []
    for nodes in _places(root, len(wanted), within):
        bound: dict[str, Any] = {}
        if _alike(wanted, nodes, bound):
            found.append((nodes, bound))
    if len(found) != 1:
        at = ", ".join(str(nodes[0].lineno) for nodes, _ in found)
        raise ValueError(f"{function}: {pattern!r} stands there {len(found)} times{at and f', in lines {at}'}")
    nodes, bound = found[0]
    start, last = source.start(nodes[0]), source.start(nodes[-1]) + len(source.text(nodes[-1]))
    new = "\n".join(ast.unparse(_Filled(bound).visit(node)) for node in instead) or "pass"
    new = textwrap.indent(new, " " * nodes[0].col_offset).lstrip() if not within else new
    return Edit(nodes[0].lineno, start, text[start:last], new, within)


def _parsed(text: str) -> list[Any]:
    """Parses statements, or a single expression."""
    body: list[Any] = ast.parse(textwrap.dedent(text)).body
    return [body[0].value] if len(body) == 1 and isinstance(body[0], ast.Expr) else body


def _definition(root: ast.AST, name: str) -> ast.AST:
    for part in name.split(".") if name else ():
        found = [x for x in ast.walk(root) if isinstance(x, ast.FunctionDef | ast.ClassDef) and x.name == part]
        if not found:
            raise ValueError(f"there is no {name}")
        root = found[0]
    return root


def _places(root: ast.AST, length: int, within: bool) -> Iterator[Sequence[Any]]:
    """All expressions of a function, or all runs of this many statements."""
    for node in ast.walk(root):
        if within and isinstance(node, ast.expr):
            yield [node]
        for body in () if within else (getattr(node, field, None) for field in ("body", "orelse")):
            if isinstance(body, list):
                yield from (body[i : i + length] for i in range(len(body) - length + 1))


def _alike(pattern: Any, node: Any, bound: dict[str, Any]) -> bool:
    """Whether a node matches the pattern; the expressions that its names stand for are stored in `bound`."""
    if isinstance(pattern, ast.Name) and pattern.id.startswith("_") and isinstance(node, ast.expr):
        return pattern.id == "_" or ast.unparse(bound.setdefault(pattern.id, node)) == ast.unparse(node)
    if isinstance(pattern, ast.AST):
        fields = [field for field in pattern._fields if field not in MUTE]
        return type(pattern) is type(node) and all(
            _alike(getattr(pattern, field, None), getattr(node, field, None), bound) for field in fields
        )
    if isinstance(pattern, list | tuple):
        return len(pattern) == len(node) and all(_alike(p, n, bound) for p, n in zip(pattern, node, strict=True))
    return bool(pattern == node)


class _Filled(ast.NodeTransformer):
    """Replaces names by the expressions that they stand for."""

    def __init__(self, bound: dict[str, Any]) -> None:
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replaces a name that begins with an underscore."""
        if not node.id.startswith("_") or node.id == "_":
            return node
        if node.id not in self.bound:
            raise ValueError(f"{node.id} stands for nothing")
        return deepcopy(self.bound[node.id])
