"""Finds where a trajectory departs from the reference's: the first update that differs, and what is wrong in it."""

from collections.abc import Sequence
from dataclasses import replace

from port_checker.explaining.reference import reference
from port_checker.explaining.steps import told_steps
from port_checker.finding.answers import answer
from port_checker.finding.figures import wrong_in
from port_checker.finding.port import Parts, Port
from port_checker.finding.questions import Question


def told_course(port: Port, asked: Sequence[Question]) -> tuple[str, ...]:
    """Describes the first update that goes wrong, the parts affected, and what its step shows."""
    own = reference(port.pair.name)
    for question in asked:
        first = _first(port, question)
        if first is None:
            continue
        start = after(own, question, first - 1)
        right, ours = after(own, question, first), after(port, question, first)
        wrong = [part for part in wrong_in("update", ours, right) if not part.endswith("_optimizer")]
        number = int(question.given.inputs[first - 1]["step"])
        where = f"the first update that differs is number {number}, in {', '.join(f'`{part}`' for part in wrong)}"
        given = replace(question.given, start=start, inputs=question.given.inputs[first - 1 : first])
        single = Question("update", f"{question.where}, update {number}", given, right)
        alone = answer(port, single)
        if not wrong_in("update", alone, right):
            return (
                f"{where}; by itself, from the reference's state, that update is right: something else that your state "
                f"carries is not",
            )
        told = told_steps([single], [alone], port.pair.name)
        return (where, *dict.fromkeys(sentence for sentences in told.values() for sentence in sentences))
    return ()


def after(port: Port, question: Question, updates: int) -> Parts:
    """The weights and moments after this many of a trajectory's updates."""
    if not updates:
        return question.given.start
    cut = replace(question, given=replace(question.given, inputs=question.given.inputs[:updates]))
    return {part: values for part, values in answer(port, cut).items() if values is not None}


def _first(port: Port, question: Question) -> int | None:
    """The number of the first update after which the states differ, counted from 1; None if they never do."""
    own, low, high = reference(port.pair.name), 0, len(question.given.inputs)

    def differ(updates: int) -> bool:
        return bool(wrong_in("update", after(port, question, updates), after(own, question, updates)))

    if not differ(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differ(middle) else (middle, high)
    return high
