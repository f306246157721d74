"""Answers the operators' questions about a syntax tree: positions in the text, names, and assignments."""

import ast
import copy
import math
import re
from collections.abc import Collection
from itertools import accumulate
from typing import TypeGuard

# Marks local variables until they have numbers
MARK = "local__"
MODULES = {"jax", "jnp", "nn", "optax", "math", "torch", "np", "F", "struct", "copy"}


class Source:
    """A file's text, its tree, and the positions of the tree's nodes in the text."""

    def __init__(self, text: str) -> None:
        assert text.isascii(), "offsets in bytes are offsets in characters"
        self.whole, self.tree = text, ast.parse(text)
        self._starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]

    def text(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        """A node's text; `ast.get_source_segment` would split the whole file for each node."""
        return self.whole[self.start(node) : self.end(node)]

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """The position of a node's text."""
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """The position after a node's text."""
        return self._starts[line_range(node)[1] - 1] + (node.end_col_offset or 0)

    def words(self) -> set[str]:
        """The names of all variables and fields."""
        variables = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        return variables | {node.attr for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)}


def name_of(node: ast.expr) -> str:
    """The last word of a variable or a field; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def line_range(node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
    """A node's first and last line."""
    return node.lineno, node.end_lineno or node.lineno


def is_module(node: ast.expr) -> bool:
    """Whether this is a module, or a module within one, as opposed to an object with fields."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in MODULES


def is_target(node: ast.AST) -> TypeGuard[ast.Name]:
    """Whether this is a name that gets a value."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def is_docstring(statement: ast.stmt) -> bool:
    """Whether a statement is a constant and nothing else."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def targets(node: ast.AST) -> list[str]:
    """The names that get a value within a node."""
    return [child.id for child in ast.walk(node) if is_target(child)]


def bound_names(node: ast.AST) -> set[str]:
    """The names that get a value in a function, including its arguments."""
    return {child.arg for child in ast.walk(node) if isinstance(child, ast.arg)} | set(targets(node))


def second_binding(node: ast.AST, name: str) -> float:
    """The line on which a name gets a value for the second time; infinite if there is none."""
    lines = sorted(child.lineno for child in ast.walk(node) if is_target(child) and child.id == name)
    return lines[1] if len(lines) > 1 else math.inf


def is_removable(statement: ast.stmt, bound: Collection[str]) -> bool:
    """Whether the function still makes sense without this statement: all names that it sets are already `bound`."""
    if isinstance(statement, ast.Expr | ast.AugAssign):
        return True
    names = targets(statement)
    return isinstance(statement, ast.Assign) and bool(names) and all(name in bound for name in names)


def marked(node: ast.AST, local: Collection[str]) -> str:
    """A node's text in one layout, with a mark before each local variable."""
    node = copy.deepcopy(node)
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and child.id in local:
            child.id = MARK + child.id
        elif isinstance(child, ast.arg):
            child.arg = MARK + child.arg
    return " ".join(ast.unparse(node).split())


def numbered(text: str) -> str:
    """A text in which marked variables are named v1, v2 and so on, in the order of their appearance."""
    names = list(dict.fromkeys(re.findall(rf"{MARK}\w+", text)))
    return re.sub(rf"{MARK}\w+", lambda name: f"v{names.index(name[0]) + 1}", text)
