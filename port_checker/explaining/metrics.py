"""Finds the change to our twin that gives a wrong metric, or another metric with the same numbers."""

from collections.abc import Mapping, Sequence

import numpy as np

from port_checker.explaining.changes import changes, close, shown
from port_checker.explaining.edits import Case
from port_checker.explaining.families import FURTHER, SIMPLE
from port_checker.explaining.reference import case_of, settings_of, wrongest_first
from port_checker.finding.figures import TOLERANCES, Figures, compare
from port_checker.finding.questions import Question

METRICS = "metrics"


def wrong_metrics(asked: Sequence[Question], answers: Sequence[Figures]) -> list[str]:
    """The metrics that exceed the tolerance in some update."""
    found: dict[str, None] = {}
    for question, figures in zip(asked, answers, strict=True):
        errors = compare("log", figures, question.expected)[METRICS]
        found |= dict.fromkeys(name for name, error in errors.items() if not error <= TOLERANCES["log"])
    return list(found)


def told_metric(
    name: str, metric: str, asked: Sequence[Question], answers: Sequence[Figures], seconds: float
) -> tuple[tuple, tuple[str, ...]]:
    """The changes to our twin that give a metric, and hints from its numbers alone."""
    logged = [(question, figures.get(METRICS) or {}) for question, figures in zip(asked, answers, strict=True)]
    pairs = [(q, values[metric]) for q, values in logged if metric in values and metric in q.expected[METRICS]]
    ours = np.array([value for _, value in pairs])
    if sentence := _other(metric, [question.expected[METRICS] for question, _ in pairs], ours):
        return (), (sentence,)
    cases = wrongest_first([case_of(name, "log", metric, question, x) for question, x in pairs])
    if found := changes(cases, "log", SIMPLE, settings_of(asked), seconds):
        return tuple(found[:3]), ()
    if ratio := ratio_of(cases):
        return (), (f"`{metric}`: your numbers are the reference's times {ratio}",)
    return tuple(changes(cases, "log", FURTHER, settings_of(asked), seconds)[:3]), ()


def _other(metric: str, expected: Sequence[Mapping[str, np.ndarray]], ours: np.ndarray) -> str:
    for other in expected[0]:
        if other != metric and all(other in values for values in expected):
            theirs = np.array([values[other] for values in expected])
            if np.allclose(ours, theirs, rtol=TOLERANCES["log"], atol=0.0):
                return f"`{metric}` has the numbers of `{other}`"
    return ""


def ratio_of(found: Sequence[Case]) -> str:
    """The factor between somebody's numbers and our twin's, if it is the same everywhere."""
    ours = [case.unchanged() for case in found]
    factors = [float(mine @ case.target / (mine @ mine)) for mine, case in zip(ours, found, strict=True) if mine.any()]
    if not factors or not all(close(factor, factors[0]) for factor in factors) or close(factors[0], 1.0):
        return ""
    proportional = all(case.same(factors[0] * mine) for mine, case in zip(ours, found, strict=True))
    return shown(factors[0]) if proportional else ""
