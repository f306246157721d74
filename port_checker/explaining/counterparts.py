"""Changes that take statements of one file over from the other one's function of the same name.

Both files of a pair name things alike, so most statements mean the same in both. If one of them differs and the check
passes with the other file's, this is where the files differ.
"""

import ast
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from parity_tests.mutants.operators import Mutant
from parity_tests.mutants.syntax import Source, is_docstring, name_of

# Methods of PyTorch's tensors without arguments, and functions of JAX that compute the same
METHODS = {"detach": "jax.lax.stop_gradient", "abs": "jnp.abs", "exp": "jnp.exp", "log": "jnp.log", "sqrt": "jnp.sqrt"}
# Statements without others inside them
SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)


def taken_over(ours: Source, theirs: Source) -> Iterator[Mutant]:
    """Yields changes of the JAX file `ours` to statements of the PyTorch file `theirs`.

    In each function that both files have, these are single statements that differ, and runs of them.
    """
    # PyTorch calls a network's own function `forward`, and flax `__call__`.
    there = {name.replace(".forward", ".__call__"): owner for name, owner in _functions(theirs.tree)}
    for name, owner in _functions(ours.tree):
        if name in there:
            others = [_in_jax(theirs, statement) for statement in _statements(there[name])]
            yield from _differing(name, ours, _statements(owner), others)


def _differing(name: str, ours: Source, mine: Sequence[ast.stmt], others: Sequence[str]) -> Iterator[Mutant]:
    matcher = SequenceMatcher(None, [ast.unparse(s) for s in mine], [_plain(s) for s in others], autojunk=False)
    for kind, first, last, start, end in matcher.get_opcodes():
        if kind != "replace":
            continue
        if last - first == end - start:
            for statement, other in zip(mine[first:last], others[start:end], strict=True):
                yield _change(name, ours, [statement], [other])
        in_a_row = len({statement.col_offset for statement in mine[first:last]}) == 1
        if in_a_row and (last - first > 1 or end - start > 1):
            yield _change(name, ours, mine[first:last], others[start:end])


def _change(name: str, ours: Source, old: Sequence[ast.stmt], new: Sequence[str]) -> Mutant:
    start, indent = ours.start(old[0]), "\n" + " " * old[0].col_offset
    before = ours.whole[start : ours.end(old[-1])]
    after = indent.join(new)
    return Mutant(name, old[0].lineno, None, start, before, after, f"{name}: {before} -> {after}")


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a file and the methods of its classes, by name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    yield f"{node.name}.{method.name}", method


def _statements(owner: ast.FunctionDef) -> list[ast.stmt]:
    """A function's simple statements in the order of their lines, without its docstring."""
    found = [node for node in ast.walk(owner) if isinstance(node, SIMPLE) and not is_docstring(node)]
    return sorted(found, key=lambda node: node.lineno)


def _in_jax(source: Source, statement: ast.stmt) -> str:
    """A PyTorch statement's text in JAX's words."""
    edits = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id == "torch":
            edits.append((source.start(node), source.end(node), "jnp"))
        # Our JAX files' own `clamp` takes both bounds by place.
        if isinstance(node, ast.Call) and name_of(node.func) == "clamp" and node.keywords:
            edits.append((source.start(node.func), source.end(node.func), "jnp.clip"))
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and not node.args
            and (function := METHODS.get(node.func.attr))
        ):
            inner = node.func.value
            edits.append((source.start(inner), source.start(inner), f"{function}("))
            edits.append((source.end(inner), source.end(node), ")"))
    text, first = source.text(statement), source.start(statement)
    for start, end, new in sorted(edits, reverse=True):
        text = text[: start - first] + new + text[end - first :]
    return text


def _plain(statement: str) -> str:
    """A statement without its layout."""
    return ast.unparse(ast.parse(statement))
