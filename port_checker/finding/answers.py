"""Answers questions with a port."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from parity_tests.ladder.draws import faults, reuses_key
from port_checker.finding.figures import Figures
from port_checker.finding.loading import NotWrittenError
from port_checker.finding.port import Parts, Port
from port_checker.finding.questions import Given, Question
from shared.errors import InputError
from shared.frameworks.exchange import Named


def answer(port: Port, question: Question) -> Figures:
    """Computes the port's figures; a group is None if its function is not written yet.

    Raises:
        InputError: The file does not do what its contract says.
        NotWrittenError: Nothing can be computed without the missing function.
    """
    return ANSWERS[question.rung](port, question)


def _started(port: Port, given: Given) -> Any:
    return port.state(given.config, given.sizes, given.start)


def _read(port: Port, given: Given, state: Any) -> Parts:
    return port.read(state, given.config, given.sizes, given.start)


def _answer_weights(port: Port, question: Question) -> Figures:
    return _read(port, question.given, _started(port, question.given))


def _answer_forward(port: Port, question: Question) -> Figures:
    found = port.outputs(_started(port, question.given), question.given.inputs[0])
    shapes = {name: np.shape(value[""]) for name, value in question.expected.items()}
    # A file whose critics give only means may omit the axis of quantiles.
    found = {
        name: value[..., None] if shapes.get(name) == (*np.shape(value), 1) else value for name, value in found.items()
    }
    wrong = [f"{name!r} {np.shape(value)}" for name, value in found.items() if shapes.get(name) != np.shape(value)]
    if wrong:
        expected = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        raise InputError(f"outputs gives {', '.join(wrong)}: expected {expected}")
    return {name: {"": found[name]} if name in found else None for name in shapes}


def _answer_loss(port: Port, question: Question) -> Figures:
    state = _started(port, question.given)
    found: dict[str, Named | None] = {}
    for name in question.expected:
        try:
            value = port.loss(name, state, question.given.inputs[0], port.differentiated(name, state))
            found[name] = {"": np.asarray(value)}
        except NotWrittenError:
            found[name] = None
    return found


def _answer_gradient(port: Port, question: Question) -> Figures:
    given = question.given
    state = _started(port, given)
    found: dict[str, Named | None] = {}
    layouts = port.layouts(given.config, given.sizes, given.start)
    for name in {group.partition(" by ")[0]: None for group in question.expected}:
        parts = port.pair.losses[name].of
        try:
            trees = port.gradient(name, state, given.inputs[0])
        except NotWrittenError:
            found |= dict.fromkeys((f"{name} by {part}" for part in parts), None)
            continue
        for part, tree in zip(parts, trees, strict=True):
            found[f"{name} by {part}"] = layouts[part].to_torch(tree, f"the gradient by {part}")
    return found


# Cached because the log rung needs the metrics of the same updates: three for each of a pair's settings and datasets
@lru_cache(maxsize=15)
def _updated(port: Port, given: Given) -> tuple[Parts, Mapping[str, Any]]:
    """The port's weights and moments after an update, and its metrics."""
    state, metrics = port.update(_started(port, given), given.inputs[0])
    return _read(port, given, state), metrics


def _answer_update(port: Port, question: Question) -> Figures:
    return _updated(port, question.given)[0]


def _answer_log(port: Port, question: Question) -> Figures:
    """The metrics under the reference's names; a file may log others, or none."""
    _, metrics = _updated(port, question.given)
    expected = question.expected["metrics"]
    return {"metrics": {name: np.asarray(value) for name, value in metrics.items() if name in expected}}


def _answer_trajectory(port: Port, question: Question) -> Figures:
    state = port.trajectory(_started(port, question.given), question.given.inputs)
    return _read(port, question.given, state)


def _answer_draws(port: Port, question: Question) -> Figures:
    inputs = question.given.inputs
    # Rows of the environment, or of a model, are numbered after the dataset's rows.
    rows = max(given["dataset_size"] + (given.get("online_size") or 0) for given in inputs)
    rows += port.pair.further_rows - port.pair.unchosen_rows(question.given.config)
    found = faults([port.draws(given) for given in inputs], question.drawn, rows)
    # A key that is used twice shows up in other figures too, except if indices and noise share it.
    seen = any(value.any() for values in found.values() for value in values.values())
    if not seen and reuses_key(lambda: port.draws(inputs[0])):
        found["indices"] = {**found["indices"], "reuse": np.ones(())}
    return found


ANSWERS: Mapping[str, Callable[[Port, Question], Figures]] = {
    "weights": _answer_weights,
    "forward": _answer_forward,
    "loss": _answer_loss,
    "gradient": _answer_gradient,
    "update": _answer_update,
    "log": _answer_log,
    "trajectory": _answer_trajectory,
    "draws": _answer_draws,
}
