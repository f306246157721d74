"""Reorders operations, and pairs rows with the wrong rows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from jax.extend.core import Literal, Var

from port_checker.explaining.edits import Edit, How
from port_checker.explaining.families.functions import BINARY
from port_checker.explaining.families.places import floats, is_mean, keys_of, places
from port_checker.explaining.families.words import operands, spoken
from port_checker.explaining.operations import SHAPES, Atom, Operation, Program, Read


def _readers(program: Program) -> dict[Atom, list[Operation]]:
    """The operations that read each variable."""
    readers: dict[Atom, list[Operation]] = defaultdict(list)
    for operation in program.operations:
        for atom in operation.reads:
            if isinstance(atom, Var):
                readers[atom].append(operation)
    return readers


def reduced_first(program: Program, within: bool) -> Iterator[Edit]:
    """Takes a mean or a sum before an operation instead of after it: |mean q| for mean |q|."""
    readers = _readers(program)
    for operation in program.operations:
        after = readers[operation.writes[0]] if len(operation.writes) == 1 else []
        if (
            operation.inside
            or len(after) != 1
            or not after[0].name.startswith("reduce_")
            or not _elementwise(operation)
        ):
            continue
        last = reducer = after[0]
        if len(readers[reducer.writes[0]]) == 1 and is_mean(program, readers[reducer.writes[0]][0]):
            last = readers[reducer.writes[0]][0]
        which = next(i for i, atom in enumerate(operation.reads) if not isinstance(atom, Literal))
        what = f"`{spoken(operation)}` after the {'mean' if last is not reducer else spoken(reducer)}, not before it"
        keys = keys_of(list(dict.fromkeys([operation, reducer, last])))
        yield Edit(what, last.span, _outside(program, operation, last), keys, _later(operation.key, last.key, which))


def exchanged(program: Program, within: bool) -> Iterator[Edit]:
    """Swaps two operations: a factor after a bound instead of before it."""
    readers = _readers(program)
    for first in program.operations:
        after = readers[first.writes[0]] if len(first.writes) == 1 else []
        if len(after) == 1 and not first.inside and _elementwise(first) and _elementwise(after[0]):
            which = next(i for i, atom in enumerate(first.reads) if not isinstance(atom, Literal))
            what = f"`{spoken(first)}` after `{spoken(after[0])}`, not before it"
            yield Edit(what, after[0].span, "", keys_of([first, after[0]]), _later(first.key, after[0].key, which))
            if after[0].name in ("clip", "clamp"):
                how = _later(first.key, after[0].key, which, bounded=True)
                what = f"{what}, its bounds times {{}}"
                yield Edit(what, after[0].span, "", keys_of([first, after[0]]), how, neutral=1.0)


def not_reduced(program: Program, within: bool) -> Iterator[Edit]:
    """Omits a mean over the batch, so that each row keeps its own number."""
    for operation in program.operations:
        if is_mean(program, operation) and operation.reads[0] in program.made_by:
            reducer = program.operations[program.made_by[operation.reads[0]]]
            text = program.source.text(operation.span)
            if reducer.name == "reduce_sum" and text.endswith(".mean()"):
                keys = (reducer.key, operation.key)
                yield Edit("the mean left out", operation.span, text.removesuffix(".mean()"), keys, _operand_as_it_is)


def _operand_as_it_is(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
    return [read(op.reads[0])]


def _later(inner: tuple, last: tuple, which: int, bounded: bool = False) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        first = program.operations[program.by_key[inner]]
        if op.key == inner:
            return [read(op.reads[which])]
        constants = number if bounded and op.key == last else 1.0
        found = op.compute(*(read(atom) * constants if isinstance(atom, Literal) else read(atom) for atom in op.reads))
        if op.key != last:
            return found
        given = [found[0] if place == which else read(atom) for place, atom in enumerate(first.reads)]
        return [np.asarray(first.compute(*given)[0])]

    return how


def _outside(program: Program, operation: Operation, last: Operation) -> str:
    """`abs(q.mean())` for `abs(q).mean()`."""
    before, whole = program.source.text(operation.span), program.source.text(last.span)
    texts = operands(program, operation)
    if not before or whole.count(before) != 1 or not texts or before.count(texts[0]) != 1:
        return ""
    return before.replace(texts[0], whole.replace(before, texts[0]))


def _elementwise(operation: Operation) -> bool:
    shaped = [atom for atom in operation.reads if not isinstance(atom, Literal)]
    same = [atom for atom in shaped if atom.aval.shape == operation.writes[0].aval.shape]
    return len(shaped) == 1 and len(same) == 1 and operation.name not in SHAPES and floats(operation)


def crossed(program: Program, within: bool) -> Iterator[Edit]:
    """Broadcasts (B,) with (B, 1) to (B, B); the mean of the result equals a mean over all shifts of the second."""
    for operations in places(program, False):
        operation = operations[0]
        shapes = [tuple(atom.aval.shape) for atom in operation.reads]
        if len(shapes) == 2 and shapes[0][-1:] == shapes[1] and shapes[1] and operation.name in BINARY:
            yield _as_matrix(program, operations)
        elif len(shapes) == 2 and shapes[0] == shapes[1] and len(shapes[0]) == 2 and operation.name in BINARY:
            reads = operation.reads[1]
            made = program.operations[program.made_by[reads]] if reads in program.made_by else None
            if made is not None and made.name == "broadcast_in_dim" and len(made.reads[0].aval.shape) == 1:
                yield _as_matrix(program, operations)


def _as_matrix(program: Program, operations: Sequence[Operation]) -> Edit:
    span = operations[0].span
    return Edit(f"`{program.source.text(span)}` is (B, B)", span, "", keys_of(operations), _shifted, shifts=True)


def _shifted(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
    left, right = map(read, op.reads)
    return op.compute(left, np.roll(right, int(number), axis=-1))
