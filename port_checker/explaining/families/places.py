"""Finds the operations that one change in the source affects, and the numbers that they may read instead."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal, Var

from port_checker.explaining.edits import How
from port_checker.explaining.operations import SHAPES, Atom, Operation, Program, Read

# Operations that are not by themselves a function in the twin's expression
REDUCTIONS = ("reduce", "arg", "dot", "cum")

# Identifies a number in any trace: an input's name, or the operation that produces it
Reference = tuple


def places(program: Program, within: bool) -> Iterator[list[Operation]]:
    """Yields single operations, then groups that one change to a function or to similar expressions changes."""
    groups: dict[tuple, list[Operation]] = defaultdict(list)
    for operation in program.operations:
        if not operation.calls or (operation.inside and not within) or operation.name in SHAPES:
            continue
        stack, name, ordinal = operation.key
        inner = operation.calls[0]
        alone = () if operation.inside else (ordinal,)
        groups["single", stack, name, ordinal].append(operation)
        groups["repeated", stack, name].append(operation)
        groups["called", inner, name, alone].append(operation)
        groups["alike", operation.function, name, _skeleton(program, inner), alone].append(operation)
        node = program.source.node(span_of(operation))
        constants = type(node), is_mean(program, operation), *(isinstance(atom, Literal) for atom in operation.reads)
        groups["line", operation.function, name, inner[0], constants].append(operation)
        groups["all", operation.function, name, constants].append(operation)
    told = set()

    def order(item: tuple[tuple, list[Operation]]) -> int:
        # A network's layers are written the same way, and rarely is a single one of them wrong.
        return len(ORDER) if item[1][0].inside and item[0][0] == "single" else ORDER.index(item[0][0])

    for _, operations in sorted(groups.items(), key=order):
        if (keys := keys_of(operations)) not in told:
            told.add(keys)
            yield operations


ORDER = ("single", "repeated", "called", "alike", "line", "all")


def _skeleton(program: Program, span: tuple) -> str:
    """An expression with its digits masked, so that `critic_1` and `critic_2` give the same."""
    return re.sub(r"\d+", "#", program.source.text(span)) or str(span)


def keys_of(operations: Sequence[Operation]) -> tuple:
    """The keys of operations."""
    return tuple(operation.key for operation in operations)


def span_of(operation: Operation) -> tuple:
    """The expression that an operation belongs to: inside a network, the network's own."""
    return operation.calls[0] if operation.inside else operation.span


def is_mean(program: Program, operation: Operation) -> bool:
    """Whether the operation is the division that turns a sum into a mean."""
    node = program.source.node(span_of(operation))
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "mean"
    return called and operation.name == "div" and isinstance(operation.reads[1], Literal)


def floats(operation: Operation) -> bool:
    """Whether the operation gives one floating-point array."""
    return len(operation.writes) == 1 and operation.writes[0].aval.dtype.kind == "f"


def refer(program: Program, atom: Atom) -> Reference:
    """Returns a reference that identifies a number in any trace."""
    if atom in program.named:
        return "input", program.named[atom]
    operation = program.operations[program.made_by[atom]]
    return "value", operation.key, operation.writes.index(atom)


def resolve(program: Program, reference: Reference) -> Atom:
    """Returns the variable in this trace that a reference identifies."""
    if reference[0] == "input":
        return program.inputs[reference[1]]
    return program.operations[program.by_key[reference[1]]].writes[reference[2]]


def reading(exchanged: Mapping[Reference, Reference]) -> How:
    """Makes an operation read other numbers."""

    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        others = {resolve(program, old): resolve(program, new) for old, new in exchanged.items()}
        return op.compute(*(read(atom if isinstance(atom, Literal) else others.get(atom, atom)) for atom in op.reads))

    return how


def calls_of(program: Program) -> dict[tuple, list[Operation]]:
    """Groups operations by the expression they belong to; a network call's operations form one group."""
    calls: dict[tuple, list[Operation]] = defaultdict(list)
    for number, operation in enumerate(program.operations):
        if not operation.calls or (operation.name in SHAPES and not operation.inside):
            continue
        ours = [frame for frame in operation.key[0] if frame[0] == program.source.file]
        outer = next((i for i, frame in enumerate(ours) if frame[1:] == operation.span), 0)
        calls[("call", *ours[outer:]) if operation.inside else ("own", number)].append(operation)
    return calls


def alike_calls(program: Program) -> list[list[list[Operation]]]:
    """Calls, singly, and together if several expressions of a function differ only in their digits."""
    alike: dict[tuple, list[list[Operation]]] = defaultdict(list)
    for operations in calls_of(program).values():
        skeleton = _skeleton(program, operations[0].span)
        alike[operations[0].function if not operations[0].inside else "", skeleton, operations[0].name].append(
            operations
        )
    return [[call] for calls in alike.values() for call in calls] + [
        calls for calls in alike.values() if len(calls) > 1
    ]


def named_in(program: Program, operation: Operation, name: str) -> tuple:
    """The first expression on the call stack of an operation that contains a name, such as a helper's caller."""
    found = [span for span in operation.calls if name and name in program.source.text(span)]
    return found[0] if found else operation.span


def outer_of(program: Program, operations: Sequence[Operation], weights: bool = False) -> list[Atom]:
    """The variables that operations read but do not produce; weights are included only on request."""
    made = {var for operation in operations for var in operation.writes}
    atoms = [atom for operation in operations for atom in operation.reads if isinstance(atom, Var)]
    outer = (a for a in atoms if a not in made and _has_origin(program, a) and (weights or not is_weight(program, a)))
    return list(dict.fromkeys(outer))


def _has_origin(program: Program, atom: Atom) -> bool:
    """Whether it is an input or an operation's result, and not a constant."""
    return atom in program.named or atom in program.made_by


def is_weight(program: Program, atom: Any) -> bool:
    """Whether it is a network's weight tensor."""
    return isinstance(atom, Var) and ".params" in program.named.get(atom, "")


def known_numbers(program: Program) -> dict[Atom, str]:
    """Numbers that another one may be mistaken for, with their expressions."""
    found = {var: name for var, name in program.named.items() if not is_weight(program, var)}
    found = {var: name for var, name in found.items() if "optimizer" not in name}
    outside = {atom for op in program.operations if not op.inside for atom in op.reads if isinstance(atom, Var)}
    for operation in program.operations:
        for var in operation.writes:
            if operation.calls and (not operation.inside or var in outside) and (text := program.text(var)):
                found[var] = text
    return {var: short(name) for var, name in found.items() if var.aval.dtype.kind == "f"}


def short(name: str) -> str:
    """`critic_1` for `state.critic_1`."""
    return re.sub(r"^(state|parts)\.", "", name)
