"""Names operations and expressions in the source's own words."""

import ast
import re

from port_checker.explaining.families.functions import COMPARED
from port_checker.explaining.families.places import short, span_of
from port_checker.explaining.operations import Operation, Program

MODULES = {"jnp", "jax", "np", "lax", "nn", "optax", "math"}

SPOKEN = {"neg": "-", "max": "maximum", "min": "minimum", "mul": "*", "add": "+", "sub": "-", "div": "/",
          "clamp": "clip", "select_n": "where", "integer_pow": "**", "gt": ">", "ge": ">=", "lt": "<", "le": "<=",
          "reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "eq": "==", "ne": "!="}  # fmt: skip


def spoken(operation: Operation) -> str:
    """The source's name for an operation."""
    return SPOKEN.get(operation.name, operation.name)


def operands(program: Program, operation: Operation) -> list[str]:
    """The expressions of an operation's operands; empty where unknown."""
    node = program.source.node(span_of(operation))
    found: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and operation.name in ARITHMETIC:
        found = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and operation.name in ("neg", "not"):
        found = [node.operand]
    elif isinstance(node, ast.Compare) and operation.name in COMPARED:
        found = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and called(node) in (operation.name, spoken(operation), f"a{spoken(operation)}"):
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        method = owner is not None and not (isinstance(owner, ast.Name) and owner.id in MODULES)
        found = [*([owner] if method and owner is not None else []), *node.args]
    if found and (len(found) == len(operation.reads) or len(operation.reads) == 1):
        return [ast.unparse(node) for node in found][: len(operation.reads)]
    whole = program.source.text(span_of(operation))
    texts = [program.text(atom) for atom in operation.reads]
    return ["" if text == whole else short(text) for text in texts]


ARITHMETIC = ("add", "sub", "mul", "div", "pow", "integer_pow", "rem", "square", "dot_general")


def called(node: ast.Call) -> str:
    """The name of the function that is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def alone(program: Program, operation: Operation) -> bool:
    """Whether the operation is everything that its expression does."""
    return program.kinds[operation.key[0]] == {operation.name}


def bracketed(text: str) -> str:
    """Puts an expression in parentheses unless it is a name, a call or an element."""
    return text if re.fullmatch(r"[\w.()\[\], ]+", text) else f"({text})"
