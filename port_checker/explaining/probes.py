"""Explains numbers that no known mistake gives.

Our twin is changed in one place until it gives them. If no change does, hints come from the numbers themselves.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from port_checker.explaining.changes import Change, changes
from port_checker.explaining.courses import told_course
from port_checker.explaining.edits import RIGHT
from port_checker.explaining.families import FURTHER, SIMPLE
from port_checker.explaining.gradients import derivative_told, flow
from port_checker.explaining.lacking import lacking
from port_checker.explaining.mechanical import mechanical
from port_checker.explaining.metrics import ratio_of, told_metric, wrong_metrics
from port_checker.explaining.reference import cases, settings_of
from port_checker.explaining.rows import rows_told
from port_checker.explaining.sensitivity import dependences
from port_checker.explaining.steps import told_steps
from port_checker.explaining.terms import added, terms_told
from port_checker.finding.answers import answer
from port_checker.finding.figures import Figures, wrong_in
from port_checker.finding.port import Port
from port_checker.finding.questions import Question, questions

# How long a search for changes may take, for each wrong group
SECONDS = 7.0
# How long the search among mechanical changes may take
BY_MACHINE = 7.0
# Larger errors do not come from single precision.
ROUNDING = 1e-6


class Told(NamedTuple):
    """An explanation of one group's numbers.

    Attributes:
        changes: Changes to our twin that give the numbers; several if nothing distinguishes them.
        hints: Hints from the numbers themselves, in words.
    """

    changes: tuple[Change, ...] = ()
    hints: tuple[str, ...] = ()


def probe(
    port: Port, rung: str, groups: Sequence[str], asked: Sequence[Question], answers: Sequence[Figures]
) -> dict[str, Told]:
    """Explains each of a rung's wrong groups."""
    told: dict[str, Told] = {}
    if rung == "update":
        found = told_steps(asked, answers, port.pair.name)
        told = {group: Told(hints=found.get(group, ())) for group in groups}
        return told if any(one.hints for one in told.values()) else _by_machine(port, rung, groups, asked, answers)
    if rung == "log":
        return dict.fromkeys(groups, _log(port, asked, answers))
    if rung == "trajectory":
        return dict.fromkeys(groups, Told(hints=told_course(port, asked)))
    for group in groups:
        # A loss's gradients by several parts go wrong together.
        alike = next((other for other in told if other.partition(" by ")[0] == group.partition(" by ")[0]), None)
        told[group] = told[alike] if alike is not None else _probed(port, rung, group, asked, answers)
    return told


def _probed(port: Port, rung: str, group: str, asked: Sequence[Question], answers: Sequence[Figures]) -> Told:
    if not _finite(group, answers):
        return Told(hints=("some of your numbers are not finite",))
    if rung in ("forward", "loss"):
        return _values(port, rung, group, asked, answers)
    if rung == "gradient":
        return _gradient(port, group, asked, answers)
    return Told()


def _finite(group: str, answers: Sequence[Figures]) -> bool:
    values = [value for figures in answers for value in (figures.get(group) or {}).values()]
    return all(np.isfinite(np.asarray(value, np.float64)).all() for value in values)


# ---- outputs and losses --------------------------------------------------------------------------------------------


def _values(port: Port, rung: str, group: str, asked: Sequence[Question], answers: Sequence[Figures]) -> Told:
    found = cases(port, group, asked, answers)
    if all(case.off <= RIGHT for case in found):
        return Told()
    settings = settings_of(asked)
    if simple := changes(found, rung, SIMPLE, settings, SECONDS):
        return Told(tuple(simple[:3]))
    if ratio := ratio_of(found):
        return Told(hints=(f"your numbers are the reference's times {ratio}",))
    if further := changes(found, rung, FURTHER, settings, SECONDS):
        return Told(tuple(further[:3]))
    if max(case.off for case in found) <= ROUNDING:
        return Told(hints=(SINGLE_PRECISION,))
    if rung == "loss" and (told := terms_told(found, settings) or added(found)):
        return Told(hints=tuple(f"compared with the reference's, {one}" for one in told))
    if by_machine := mechanical(port.pair.name, rung, group, asked, answers, BY_MACHINE):
        return Told(by_machine)
    lacked = lacking(port, rung, group, asked, answers)
    return Told(hints=(*lacked, *(_shown(port, group, asked, answers) if rung == "loss" else ())))


def _shown(port: Port, loss: str, asked: Sequence[Question], answers: Sequence[Figures]) -> tuple[str, ...]:
    """Describes the inputs that a loss depends on, and the rows in which it is wrong."""
    pairs = zip(asked, answers, strict=True)
    wrong = [question for question, figures in pairs if loss in wrong_in("loss", figures, question.expected)]
    wrong = [question for question in wrong or asked if loss in question.expected]
    return (*dependences(port, loss, wrong[0]), *rows_told(port, loss, wrong))[:3]


SINGLE_PRECISION = "differences of this size come from single precision: is a dtype fixed somewhere?"


# ---- gradients -----------------------------------------------------------------------------------------------------


def _gradient(port: Port, group: str, asked: Sequence[Question], answers: Sequence[Figures]) -> Told:
    loss = group.partition(" by ")[0]
    if told := _hidden(port, loss, asked):
        return told
    found = flow(port, loss, asked, answers)
    if found or (found := list(mechanical(port.pair.name, "gradient", group, asked, answers, BY_MACHINE))):
        return Told(tuple(found[:3]))
    pairs = zip(asked, answers, strict=True)
    wrong = [question for question, figures in pairs if group in wrong_in("gradient", figures, question.expected)]
    return Told(hints=derivative_told(port, loss, wrong[0]))


def _hidden(port: Port, loss: str, asked: Sequence[Question]) -> Told | None:
    """Diagnoses the loss itself if it is wrong only at other weights than the ladder's."""
    variants = tuple(dict.fromkeys(question.where.split("'")[1] for question in asked))
    losses = questions(port.pair.name, "loss", variants, port.left)
    values = [answer(port, question) for question in losses]
    told = _values(port, "loss", loss, losses, values)
    return told if told.changes else None


# ---- updates and metrics -------------------------------------------------------------------------------------------


def _by_machine(
    port: Port, rung: str, groups: Sequence[str], asked: Sequence[Question], answers: Sequence[Figures]
) -> dict[str, Told]:
    """Finds mechanical changes that give the first wrong part of an update that no rule explains."""
    found = mechanical(port.pair.name, rung, groups[0], asked, answers, BY_MACHINE)
    return {group: Told(found if group == groups[0] else ()) for group in groups}


def _log(port: Port, asked: Sequence[Question], answers: Sequence[Figures]) -> Told:
    told = [told_metric(port.pair.name, metric, asked, answers, SECONDS) for metric in wrong_metrics(asked, answers)]
    found = dict.fromkeys(change for some, _ in told for change in some)
    return Told(tuple(found), tuple(dict.fromkeys(hint for _, hints in told for hint in hints)))
