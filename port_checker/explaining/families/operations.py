"""Leaves an operation out, replaces it by another, or applies one more function to its result."""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal

from port_checker.explaining.edits import Edit, How
from port_checker.explaining.families.functions import (
    ACTIVATIONS,
    BINARY,
    BY_ROWS,
    COMPARED,
    FUNCTIONS,
    FURTHER_REDUCED,
    REDUCED,
    REDUCED_TO,
    SIGNS,
    Numbers,
)
from port_checker.explaining.families.places import (
    REDUCTIONS,
    Reference,
    floats,
    is_mean,
    keys_of,
    outer_of,
    places,
    refer,
    resolve,
    span_of,
)
from port_checker.explaining.families.words import alone, called, operands, spoken
from port_checker.explaining.operations import Operation, Program, Read


def left_out(program: Program, within: bool) -> Iterator[Edit]:
    """Replaces an operation by one of its operands."""
    for operations in places(program, within):
        operation = operations[0]
        if not floats(operation) or operation.name.startswith(REDUCTIONS):
            continue
        texts, whole = operands(program, operation), alone(program, operation)
        for which, atom in enumerate(operation.reads):
            if atom.aval.dtype.kind != "f" or not _fits(atom.aval.shape, operation.writes[0].aval.shape):
                continue
            others = [text for place, text in enumerate(texts) if place != which]
            new = texts[which] if whole else ""
            if is_mean(program, operation):
                what, new = "a sum for the mean", program.source.text(operation.span).replace(".mean(", ".sum(")
            elif len(others) == 1 and others[0] and whole and operation.name not in ("max", "min"):
                what = f"`{others[0]}` left out"
            elif call := _whole_call(program, operation, atom):
                what, new = f"`{called(call)}` left out", ast.unparse(call.args[0])
            else:
                what = f"`{spoken(operation)}` left out"
            yield Edit(what, span_of(operation), new, keys_of(operations), _operand(which))


def _whole_call(program: Program, operation: Operation, atom: Any) -> ast.Call | None:
    """The call that an operation completes, if it has another name and the operation reads the call's own argument."""
    node = program.source.node(span_of(operation))
    if not isinstance(node, ast.Call) or not node.args or called(node) in (operation.name, spoken(operation)):
        return None
    if isinstance(atom, Literal):
        return None
    within = atom in program.made_by and program.operations[program.made_by[atom]].calls == operation.calls
    return node if called(node) in HELPERS and not within else None


# Functions that consist of several operations but read as one
HELPERS = ("clamp", "softplus", "clip", "minimum", "maximum")


def _operand(which: int) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        return [np.broadcast_to(read(op.reads[which]), op.writes[0].aval.shape)]

    return how


def _fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    try:
        return np.broadcast_shapes(tuple(shape), tuple(target)) == tuple(target)
    except ValueError:
        return False


def other_operation(program: Program, within: bool) -> Iterator[Edit]:
    """Replaces an operation by another one."""
    for operations in places(program, within):
        operation = operations[0]
        if len(operation.writes) != 1 or not (operation.inside or alone(program, operation)):
            continue
        texts, whole = operands(program, operation), alone(program, operation)
        for what, function in _others(operation):
            said, new = f"`{what}` for `{spoken(operation)}`", ""
            if what == "the other way round":
                said, new = f"`{spoken(operation)}` the other way round", f"{texts[1]} {spoken(operation)} {texts[0]}"
            elif what in SIGNS and len(texts) == 2 and all(texts):
                new = f"{texts[0]} {what} {texts[1]}"
            elif what in ("maximum", "minimum") and len(texts) == 2 and all(texts):
                new = f"{what}({texts[0]}, {texts[1]})"
            yield Edit(said, span_of(operation), new if whole else "", keys_of(operations), _function(function))


def other_mean(program: Program, within: bool) -> Iterator[Edit]:
    """Replaces a mean by another statistic, such as the largest value."""
    for operation in program.operations:
        if not is_mean(program, operation) or operation.reads[0] not in program.made_by:
            continue
        reducer = program.operations[program.made_by[operation.reads[0]]]
        for what, function in FURTHER_REDUCED.items():
            if what not in ("mean", "sum"):
                said, text = f"`{what}` for `mean`", program.source.text(operation.span)
                new = text.replace(".mean(", f".{what}(") if " " not in what else ""
                how = _other_mean(reducer.key, function)
                yield Edit(said, operation.span, new, (reducer.key, operation.key), how)


def _other_mean(reducer: tuple, function: Callable) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        if op.key != reducer:
            return [read(op.reads[0])]
        return [np.asarray(_reduced(function, read(op.reads[0]), op.writes[0].aval.shape))]

    return how


def _function(function: Callable) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        return [np.asarray(function(op, *map(read, op.reads)))]

    return how


def _others(operation: Operation) -> Iterator[tuple[str, Callable]]:
    for table in (BINARY, COMPARED):
        for what, function in table.get(operation.name, {}).items():
            yield what, lambda op, x, y, f=function: f(x, y)
    if operation.name in REDUCED:
        for what, function in REDUCED_TO.items():
            if function is not REDUCED[operation.name]:
                yield what, lambda op, x, f=function: _reduced(f, x, op.writes[0].aval.shape)
    if operation.name == "argmin":
        yield "argmax", lambda op, x: _reduced(np.argmax, x, op.writes[0].aval.shape)
    if not floats(operation):
        return
    if len(operation.reads) == 1 and operation.reads[0].aval.shape == operation.writes[0].aval.shape:
        for what, function in {**FUNCTIONS, **ACTIVATIONS}.items():
            yield what, lambda op, x, f=function: f(x)


def _reduced(function: Callable, x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Reduces along the axis that the target shape lacks, or over all axes."""
    for axis in range(-1, -x.ndim - 1, -1):
        if x.ndim > 1 and np.delete(x.shape, axis).tolist() == list(shape):
            return function(x, axis=axis)
    return function(x)


def transformed(program: Program, within: bool) -> Iterator[Edit]:
    """Applies one more function to a result or to an operand."""
    for operations in places(program, within):
        operation = operations[0]
        if not floats(operation) or not (operation.inside or alone(program, operation)):
            continue
        for what, function in BY_ROWS.items():
            entrywise = "cut" in what or "tanh" in what
            if entrywise or (alone(program, operation) and operation.writes[0].aval.ndim == 1):
                text = program.source.text(span_of(operation))
                yield Edit(f"`{text}` {what}", span_of(operation), "", keys_of(operations), _then(function))
        texts = operands(program, operation)
        for which, atom in enumerate(operation.reads):
            if isinstance(atom, Literal) or atom.aval.dtype.kind != "f" or not texts[which]:
                continue
            for what, function in FUNCTIONS.items():
                written = what.replace("x", texts[which]) if " " in what or "-" in what else f"{what}({texts[which]})"
                said = f"`{written}` for `{texts[which]}`"
                yield Edit(said, span_of(operation), "", keys_of(operations), _of_operand(which, function))


def _then(function: Numbers) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        return [function(op.compute(*map(read, op.reads))[0])]

    return how


def _of_operand(which: int, function: Numbers) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        return op.compute(*(function(read(atom)) if place == which else read(atom)
                            for place, atom in enumerate(op.reads)))  # fmt: skip

    return how


def call_left_out(program: Program, within: bool) -> Iterator[Edit]:
    """Replaces a call of several operations by its argument."""
    calls: dict[tuple, list[Operation]] = defaultdict(list)
    for operation in program.operations:
        if operation.calls and (within or not operation.inside):
            calls[operation.calls].append(operation)
    for operations in calls.values():
        last, node = operations[-1], program.source.node(operations[0].calls[0])
        if len(operations) < 2 or not isinstance(node, ast.Call) or not node.args or not floats(last):
            continue
        for atom in outer_of(program, operations, weights=True):
            if atom.aval.shape == last.writes[0].aval.shape and atom.aval.dtype == last.writes[0].aval.dtype:
                how = _instead(refer(program, atom))
                new = ast.unparse(node.args[0])
                yield Edit(f"`{called(node)}` left out", operations[0].calls[0], new, (last.key,), how)


def _instead(other: Reference) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        return [read(resolve(program, other))]

    return how
