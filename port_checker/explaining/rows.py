"""Finds the rows of a batch in which a loss is wrong, and the decision in our twin that separates them."""

from collections.abc import Iterator, Sequence

import numpy as np
from jax.extend.core import Literal

from port_checker.explaining.edits import RIGHT
from port_checker.explaining.families.words import spoken
from port_checker.explaining.operations import Atom, Operation, Values
from port_checker.explaining.reference import (
    arguments_of,
    group_of,
    inputs_of,
    program_of,
    reference,
    rows_of,
    with_row,
)
from port_checker.finding.port import Port
from port_checker.finding.questions import Question

# Each side of a decision must have at least this many rows.
FEW = 3


def rows_told(port: Port, loss: str, wrong: Sequence[Question]) -> tuple[str, ...]:
    """Describes in one sentence the rows in which a loss is wrong, if all questions that it gets wrong agree."""
    found: list[list[str]] = []
    for question in wrong[:2]:
        where = wrong_rows(port, loss, question)
        if where is None or where.all():
            return ()
        if not where.any():
            found.append([f"your {loss} is right for batches of one row repeated: the rows are put together wrongly"])
        elif min(where.sum(), (~where).sum()) < FEW:
            return ()
        else:
            found.append([said for said, rows in decisions(port.pair.name, loss, question) if (rows == where).all()])
    agreed = [said for said in found[0] if all(said in others for others in found[1:])] if found else []
    return tuple(agreed) if len(agreed) in (1, 2) else ()


def wrong_rows(port: Port, loss: str, question: Question) -> np.ndarray | None:
    """For each row, whether a batch of this row alone goes wrong, (B,)."""
    wrong = []
    for row in range(rows_of(question)):
        alone = with_row(question, row)
        ours, right = (group_of(one, alone, loss) for one in (port, reference(port.pair.name)))
        if ours is None or right is None or not np.isfinite(right).all():
            return None
        wrong.append(not np.abs(ours - right).max() <= 10 * RIGHT * np.abs(right).max())
    return np.array(wrong)


def decisions(name: str, loss: str, question: Question) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the ways in which our twin separates rows: a sentence, and the rows for which it is true."""
    rows = rows_of(question)
    for column, value in inputs_of(question.given)["batch"]._asdict().items():
        numbers = np.asarray(value)
        if numbers.ndim == 1 and set(np.unique(numbers)) == {0, 1}:
            yield f"your {loss} is wrong only in rows where `{column}` is 1", numbers == 1
            yield f"your {loss} is wrong only in rows where `{column}` is 0", numbers == 0
    program = program_of(name, "loss", loss, question.given)
    values = program.values(arguments_of(name, "loss", loss, question.given))
    for operation in program.operations:
        if operation.inside or not operation.calls:
            continue
        taken = _side(operation, values)
        if taken is None or rows not in taken.shape:
            continue
        axis = taken.shape.index(rows)
        some = np.moveaxis(taken, axis, 0).reshape(rows, -1)
        place = f"`{spoken(operation)}` at {program.source.place(operation.span)}"
        yield f"your {loss} is wrong only in rows where {place} {_said(operation)}", np.asarray(some.any(axis=1))
        yield f"your {loss} is wrong only in rows where {place} does nothing of it", ~np.asarray(some.any(axis=1))


def _side(operation: Operation, values: Values) -> np.ndarray | None:
    """If an operation decides between two sides, which side each number takes."""

    def read(atom: Atom) -> np.ndarray:
        return np.asarray(atom.val) if isinstance(atom, Literal) else np.asarray(values[atom])

    given = [read(atom) for atom in operation.reads]
    if operation.name in ("clip", "clamp"):
        return next(x for x in given if x.ndim) != np.asarray(values[operation.writes[0]])
    if operation.name in ("min", "max") and len(given) == 2:
        return (given[0] > given[1]) if operation.name == "min" else (given[0] < given[1])
    if operation.name == "abs":
        return given[0] < 0
    if operation.name in ("where", "select_n") and given[0].dtype == bool:
        return given[0]
    return None


def _said(operation: Operation) -> str:
    return {"clip": "cuts", "clamp": "cuts", "abs": "turns a sign", "where": "takes its first number",
            "select_n": "takes its first number"}.get(operation.name, "takes its second number")  # fmt: skip
