"""Remembers the mutants that have been tried, in a folder that git ignores: one line each, with the noticing step.

A line is valid for one version of the mutant's function and the tests. After a change of either, its mutants are tried
again. A change elsewhere in the twin is not noticed; without the folder everything is tried.
"""

import ast
from functools import cache
from hashlib import sha256
from pathlib import Path

from parity_tests import ladder
from parity_tests.mutants.deriving import derivation_of
from parity_tests.mutants.operators import Mutant
from parity_tests.mutants.syntax import bound_names, is_docstring, marked, numbered
from parity_tests.mutants.twins import source_of
from parity_tests.pairs import PAIRS

ROOT = Path(ladder.__file__).parents[2]
FOLDER = ROOT / ".mutants"


def known(name: str, side: str) -> dict[str, str]:
    """The steps that noticed a twin's mutants, by the mutants' keys."""
    path = _path(name, side)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(line.split(" ", 1) for line in lines)


def keep(name: str, side: str, mutant: Mutant, step: str) -> None:
    """Adds a line. Several processes may do so at once."""
    path = _path(name, side)
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{key(name, side, mutant)} {step}\n")


def key(name: str, side: str, mutant: Mutant) -> str:
    """The key under which a mutant is remembered."""
    parts = [_tests(name, side), _text(source_of(name, side), mutant.function), mutant.name]
    return sha256("\0".join(parts).encode()).hexdigest()[:20]


def _path(name: str, side: str) -> Path:
    return FOLDER / f"{side}-{name.replace('/', '-')}.txt"


@cache
def _text(source: str, function: str) -> str:
    """A function's text, independent of its layout, its comments and the names of its local variables."""
    node: ast.AST = ast.parse(source)
    for part in filter(None, function.split(".")):
        node = next(child for child in ast.walk(node) if getattr(child, "name", "") == part)
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Module) and is_docstring(child.body[0]):
            child.body[0] = ast.Pass()
    return numbered(marked(node, bound_names(node) if isinstance(node, ast.FunctionDef) else ()))


@cache
def _tests(name: str, side: str) -> str:
    """The text of the tests that a twin's mutants are tried with."""
    room, adapter = ROOT / "parity_tests", f"pairs/{name.replace('/', '_')}.py"
    shared = [*room.glob("*.py"), *room.glob("engine/*.py"), room / adapter]
    if side == "jax":
        found = [*shared, *room.glob("ladder/*.py"), Path(str(PAIRS[name].torch.__file__))]
    else:
        helpers = [path for path in room.glob("reference/*.py") if not path.name.startswith("test_")]
        found = [*shared, *helpers, derivation_of(name)]
    return "\0".join(path.read_text(encoding="utf-8") for path in sorted(found))
