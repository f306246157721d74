"""Gives a constant, a factor or a bound another value, which is solved for."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal

from port_checker.explaining.edits import Edit, How
from port_checker.explaining.families.places import floats, is_mean, keys_of, places, span_of
from port_checker.explaining.families.words import alone
from port_checker.explaining.operations import Operation, Program, Read


def constants(program: Program, within: bool) -> Iterator[Edit]:
    """Gives a constant another value, wherever an expression uses it."""
    groups: dict[tuple, list[tuple[Operation, int]]] = defaultdict(list)
    for operations in places(program, within):
        for operation in operations:
            for place, atom in enumerate(operation.reads):
                if _is_constant(atom) and not is_mean(program, operation):
                    entry = operation, place
                    for key in ((keys_of(operations), place), (operation.calls, float(atom.val))):
                        groups[key] += [] if entry in groups[key] else [entry]
    told: set[frozenset] = set()
    for entries in groups.values():
        operation, place = entries[0]
        value = float(operation.reads[place].val)
        same = frozenset((op.key, at) for op, at in entries)
        alike = all(float(op.reads[at].val) == value for op, at in entries)
        if same in told or not alike or not any(floats(op) for op, _ in entries):
            continue
        told.add(same)
        places_of = {op.key: at for op, at in entries}
        yield Edit(f"{{}} for {value:g}", span_of(operation), "", tuple(places_of), _with_constant(places_of),
                   neutral=value, constant=place)  # fmt: skip


def scaled(program: Program, within: bool) -> Iterator[Edit]:
    """Multiplies a result by a factor, or adds something to it."""
    for operations in places(program, within):
        operation = operations[0]
        if floats(operation) and (alone(program, operation) or is_mean(program, operation)):
            span, text = span_of(operation), program.source.text(span_of(operation))
            yield Edit("times {}", span, f"{{}} * ({text})", keys_of(operations), _times, neutral=1.0)
            yield Edit("{} added", span, f"{text} + {{}}", keys_of(operations), _plus, neutral=0.0)


def _times(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
    return [number * found for found in op.compute(*map(read, op.reads))]


def _plus(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
    return [number + found for found in op.compute(*map(read, op.reads))]


def _is_constant(atom: Any) -> bool:
    """Whether the operand is a single finite number in the source."""
    if not isinstance(atom, Literal) or np.ndim(atom.val):
        return False
    return np.asarray(atom.val).dtype.kind in "fi" and math.isfinite(atom.val)


def _with_constant(places_of: Mapping[tuple, int]) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        at = places_of[op.key]
        given = [np.asarray(number, atom.aval.dtype) if i == at else read(atom) for i, atom in enumerate(op.reads)]
        return op.compute(*given)

    return how


def bounds(program: Program, within: bool) -> Iterator[Edit]:
    """Widens or narrows a pair of bounds by one factor."""
    for operations in places(program, within):
        found = [float(a.val) for a in operations[0].reads if isinstance(a, Literal) and np.ndim(a.val) == 0]
        if len(found) == 2 and found[0] == -found[1] and math.isfinite(found[0]) and found[0]:
            yield Edit("bounds times {}", span_of(operations[0]), "", keys_of(operations), _wider, neutral=1.0)


def _wider(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
    return op.compute(*(read(atom) * number if isinstance(atom, Literal) else read(atom) for atom in op.reads))
