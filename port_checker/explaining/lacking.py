"""Finds the first of the reference's numbers that a port never computes, although it has all its operands.

Both are computed operation by operation. A port written another way has other intermediate numbers, but later reaches
the reference's numbers again. After a mistake it never does. Therefore a search backwards from a wrong result, through
numbers that the port lacks, ends at the mistake.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import Var

from parity_tests.engine.interpreter import watched
from port_checker.explaining.operations import SHAPES, Operation, Program, Span, Values
from port_checker.explaining.reference import arguments_of, program_of
from port_checker.finding.figures import Figures, wrong_in
from port_checker.finding.port import Port
from port_checker.finding.questions import Question
from port_checker.finding.tracing import Traced

# Two numbers this close, relative to them, count as equal; rounding in another order is far below it.
NEAR = 1e-8
# Anything smaller is rounding itself, and zeros are everywhere.
NOTHING = 1e-12
# More places than this do not help anybody.
MOST = 3


def lacking(
    port: Port, rung: str, group: str, asked: Sequence[Question], answers: Sequence[Figures]
) -> tuple[str, ...]:
    """Describes the places; empty if nothing is lacking, or too much to point to a place."""
    pairs = zip(asked, answers, strict=True)
    wrong = [question for question, figures in pairs if group in wrong_in(rung, figures, question.expected)]
    if not wrong:
        return ()
    question = wrong[0]
    program = program_of(port.pair.name, rung, group, question.given)
    values = program.values(arguments_of(port.pair.name, rung, group, question.given))
    known = _computed(port, rung, group, question)
    places = dict.fromkeys(_places(program, _first(program, values, known)))
    told = [f"your numbers hold all that {place} is computed from, and not its result" for place in places]
    return tuple(told) if len(told) <= MOST else ()


def _computed(port: Port, rung: str, group: str, question: Question) -> np.ndarray:
    """The absolute values of all numbers that the port receives or computes, in ascending order."""
    given, found = question.given, []

    def keep(values: Any) -> None:
        for value in values:
            if not isinstance(value, jax.Array) or not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
                array = np.asarray(value)
                if array.dtype.kind == "f":
                    found.append(np.abs(array).ravel())

    state = port.state(given.config, given.sizes, given.start)
    inputs = dict(given.inputs[0])
    keep(leaf for leaf in jax.tree.leaves((state, inputs)) if isinstance(leaf, jax.Array | np.ndarray))
    with watched(lambda calls, operands, results: keep(results)):
        if rung == "forward":
            Traced()("outputs", port.plain_outputs, state, inputs)
        else:
            parts = port.differentiated(group, state)
            Traced()("loss", lambda *trees: port.plain_loss(group, *trees), state, inputs, parts)
    return np.unique(np.concatenate(found))


def _has(known: np.ndarray, array: np.ndarray) -> bool:
    """Whether each of these numbers is known, up to its sign; flags and integers always count as known."""
    if array.dtype.kind != "f":
        return True
    sizes = np.abs(array).ravel()
    sizes = sizes[np.isfinite(sizes) & (sizes > NOTHING)]
    above = np.clip(np.searchsorted(known, sizes), 1, len(known) - 1)
    nearest = np.minimum(np.abs(known[above] - sizes), np.abs(sizes - known[above - 1]))
    return bool((nearest <= NEAR * sizes).all())


def _first(program: Program, values: Values, known: np.ndarray) -> list[Operation]:
    """Searches backwards from the results for operations whose results are lacking although all operands are known."""
    lacked: Mapping[Any, bool] = {
        var: not _has(known, values[var]) for op in program.operations for var in op.writes if var in values
    }
    wanted, found = {atom for atom in program.outputs if isinstance(atom, Var)}, []
    for operation in reversed(program.operations):
        if not any(var in wanted and lacked.get(var, False) for var in operation.writes):
            continue
        missing = [atom for atom in operation.reads if isinstance(atom, Var) and lacked.get(atom, False)]
        wanted |= set(missing)
        if not missing and operation.name not in SHAPES:
            found.append(operation)
    return found[::-1]


def _places(program: Program, operations: Sequence[Operation]) -> Iterator[str]:
    """Yields the expressions of operations with their enclosing layers and their places, one for each line."""
    lines: dict[tuple[int, str], list[Span]] = {}
    for operation in operations:
        span = operation.calls[0] if operation.calls else operation.span
        lines.setdefault((span[0], _layer(operation.key[0], program.source.file)), []).append(span)
    for (_, layer), spans in lines.items():
        span = program.source.around(spans)
        if text := program.source.statement(span):
            yield f"`{text}`{f' within {layer}' if layer else ''} ({program.source.place(span)})"


def _layer(stack: Sequence[tuple], ours: str) -> str:
    """The class of the library layer that contains an operation; empty if the operation is in our own file."""
    for file, first, *_ in stack:
        if file == ours:
            return ""
        if name := _class_at(file, first):
            return name
    return ""


@cache
def _class_at(file: str, line: int) -> str:
    """The name of the class that contains a line of a file."""
    path = Path(file)
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return next((node.name for node in classes if node.lineno <= line <= (node.end_lineno or 0)), "")
