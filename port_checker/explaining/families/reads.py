"""Makes an operation read a different number, or one more."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jax.extend.core import Literal

from port_checker.explaining.edits import Edit, How
from port_checker.explaining.families.functions import FURTHER_REDUCED
from port_checker.explaining.families.places import (
    Reference,
    alike_calls,
    calls_of,
    floats,
    keys_of,
    known_numbers,
    named_in,
    outer_of,
    reading,
    refer,
    resolve,
    short,
)
from port_checker.explaining.families.words import alone, bracketed, operands
from port_checker.explaining.operations import SHAPES, Atom, Operation, Program, Read


def read_elsewhere(program: Program, within: bool) -> Iterator[Edit]:
    """Makes one expression, or all similar ones, read another number of the same shape."""
    known = known_numbers(program)
    alike: dict[tuple, list[tuple]] = defaultdict(list)
    for operations in calls_of(program).values():
        for atom in outer_of(program, operations):
            skeleton = re.sub(r"\d+", "#", program.source.text(operations[0].span))
            alike[operations[0].function, skeleton, program.text(atom), atom.aval.shape].append((operations, atom))
    for group in alike.values():
        for some in [[one] for one in group] + ([group] if len(group) > 1 else []):
            for other, text in known.items():
                if edit := _reads(program, some, other, text, known):
                    yield edit


def _reads(
    program: Program, some: Sequence[tuple[list[Operation], Atom]], other: Atom, text: str, known: Mapping[Atom, str]
) -> Edit | None:
    """Makes each of these operations read another number in place of its own."""
    exchanged, readers = {}, []
    for operations, atom in some:
        alike = other.aval.shape == atom.aval.shape and other.aval.dtype == atom.aval.dtype
        first = program.by_key[operations[0].key]
        if other is atom or not alike or program.made_by.get(other, -1) >= first:
            return None
        exchanged[refer(program, atom)] = refer(program, other)
        readers += [op for op in operations if any(x is atom for x in op.reads)]
    atom = some[0][1]
    said = f"`{text}` for `{known.get(atom) or program.text(atom)}`"
    span = named_in(program, readers[0], known.get(atom, ""))
    written = _exchanged(program, readers[0], atom, text) if span == readers[0].span else ""
    return Edit(said, span, written, keys_of(readers), reading(exchanged))


def _exchanged(program: Program, operation: Operation, atom: Atom, text: str) -> str:
    """The operation's expression with another operand; empty if the operand cannot be identified in it."""
    whole = program.source.text(operation.span)
    texts = [program.text(atom)] if operation.inside else operands(program, operation)
    place = 0 if operation.inside else next(i for i, read in enumerate(operation.reads) if read is atom)
    if texts[place] and whole.count(texts[place]) == 1:
        return whole.replace(texts[place], text if whole in (texts[place], f"-{texts[place]}") else bracketed(text))
    return ""


def mixed(program: Program, within: bool) -> Iterator[Edit]:
    """Multiplies an operand by another number, or adds that number to it."""
    known = known_numbers(program)
    yield from _operands_mixed(program, known)
    yield from _calls_mixed(program, known)


def _operands_mixed(program: Program, known: Mapping[Atom, str]) -> Iterator[Edit]:
    """Mixes operands of single operations outside networks."""
    for operation in program.operations:
        if operation.inside or not operation.calls or operation.name in SHAPES or not floats(operation):
            continue
        if not alone(program, operation):
            continue
        texts, first = operands(program, operation), program.by_key[operation.key]
        for which, atom in enumerate(operation.reads):
            if isinstance(atom, Literal) or atom.aval.dtype.kind != "f" or not texts[which]:
                continue
            for other, text in _earlier(program, known, first, atom):
                if other.aval.shape not in {atom.aval.shape, ()}:
                    continue
                for sign, function in (("*", np.multiply), ("+", np.add), ("-", np.subtract), ("/", np.divide)):
                    said = f"`{bracketed(texts[which])} {sign} {bracketed(text)}` for `{texts[which]}`"
                    how = _with(which, refer(program, other), function)
                    yield Edit(said, operation.span, "", (operation.key,), how)


def _calls_mixed(program: Program, known: Mapping[Atom, str]) -> Iterator[Edit]:
    """Mixes the arguments of network calls."""
    for group in alike_calls(program):
        operations = [operation for call in group for operation in call]
        if not operations[0].inside:
            continue
        first = program.by_key[operations[0].key]
        for atom in outer_of(program, group[0]):
            readers = [op for op in operations if any(x is atom for x in op.reads)]
            said = short(program.text(atom))
            for other, text in _earlier(program, known, first, atom):
                if other.aval.shape != atom.aval.shape:
                    continue
                for sign, function in (("+", np.add), ("-", np.subtract), ("*", np.multiply)):
                    how = _read_with(refer(program, atom), refer(program, other), function)
                    what = f"`{bracketed(said)} {sign} {bracketed(text)}` for `{said}`"
                    yield Edit(what, readers[0].span, "", keys_of(readers), how)


def _earlier(program: Program, known: Mapping[Atom, str], first: int, atom: Atom) -> Iterator[tuple[Atom, str]]:
    """Known numbers, other than this one, that are computed before the operation at the given index."""
    for other, text in known.items():
        if other is not atom and program.made_by.get(other, -1) < first:
            yield other, text


def _read_with(mine: Reference, other: Reference, function: Callable) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        atom = resolve(program, mine)
        return op.compute(*(function(read(x), read(resolve(program, other))) if x is atom else read(x)
                            for x in op.reads))  # fmt: skip

    return how


def _with(which: int, other: Reference, function: Callable) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        given = [read(atom) for atom in op.reads]
        given[which] = function(given[which], read(resolve(program, other)))
        return op.compute(*given)

    return how


def reduced_elsewhere(program: Program, within: bool) -> Iterator[Edit]:
    """Uses a reduction of several values, such as their mean, in place of one of them or of another reduction."""
    known = known_numbers(program)
    for operation in program.operations:
        if operation.inside or not operation.calls or not floats(operation) or operation.name in SHAPES:
            continue
        shape, first = operation.writes[0].aval.shape, program.by_key[operation.key]
        for other, text in known.items():
            if other.aval.shape[1:] != shape or not shape or program.made_by.get(other, -1) >= first:
                continue
            for what, function in FURTHER_REDUCED.items():
                how = _reduction(refer(program, other), function)
                said = f"{what} over `{text}` for `{program.text(operation.writes[0])}`"
                yield Edit(said, operation.span, "", (operation.key,), how)


def _reduction(other: Reference, function: Callable) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        return [function(read(resolve(program, other)), axis=0)]

    return how
