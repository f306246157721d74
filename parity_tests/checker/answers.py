"""What a port answers."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from parity_tests.checker.figures import Figures
from parity_tests.checker.loading import NotWrittenError
from parity_tests.checker.port import Parts, Port
from parity_tests.checker.questions import Given, Question
from shared.errors import InputError


def answer(port: Port, question: Question) -> Figures:
    """The port's figures; a group is None where its function is not written yet.

    Raises:
        InputError: The file does not do what its contract says.
        NotWrittenError: Without the missing function there is nothing to tell.
    """
    return ANSWERS[question.rung](port, question)


def _started(port: Port, given: Given, number: int = 0) -> Any:
    return port.state(given.config, given.sizes, given.starts[number])


def _read(port: Port, given: Given, state: Any) -> Parts:
    return port.read(state, given.config, given.sizes, given.starts[0])


def _answer_weights(port: Port, question: Question) -> Figures:
    return _read(port, question.given, _started(port, question.given))


def _answer_forward(port: Port, question: Question) -> Figures:
    found = port.outputs(_started(port, question.given), question.given.inputs[0]["batch"])
    shapes = {name: np.shape(value[""]) for name, value in question.expected.items()}
    wrong = [f"{name!r} {np.shape(value)}" for name, value in found.items() if shapes.get(name) != np.shape(value)]
    if wrong:
        expected = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        raise InputError(f"outputs gives {', '.join(wrong)}: expected {expected}")
    return {name: {"": found[name]} if name in found else None for name in shapes}


def _answer_loss(port: Port, question: Question) -> Figures:
    state, found = _started(port, question.given), {}
    for name in question.expected:
        try:
            value = port.loss(name, state, question.given.inputs[0], port.differentiated(name, state))
            found[name] = {"": np.asarray(value)}
        except NotWrittenError:
            found[name] = None
    return found


def _answer_gradient(port: Port, question: Question) -> Figures:
    given = question.given
    state, found = _started(port, given), {}
    layouts = port.layouts(given.config, given.sizes, given.starts[0])
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


# Kept for the rung that asks for the metrics of the same updates, under as many settings as any pair has
@lru_cache(maxsize=4)
def _updated(port: Port, given: Given) -> tuple[Figures, Figures]:
    """The port's weights and moments after each update, and its metrics."""
    states, metrics = {}, {}
    for number, inputs in enumerate(given.inputs):
        state, log = port.update(_started(port, given, number), inputs)
        states |= {f"{name} after update {inputs['step']}": part for name, part in _read(port, given, state).items()}
        metrics[f"update {inputs['step']}"] = {name: np.asarray(value) for name, value in log.items()}
    return states, metrics


def _answer_update(port: Port, question: Question) -> Figures:
    return _updated(port, question.given)[0]


def _answer_log(port: Port, question: Question) -> Figures:
    """Metrics under the reference's names; a file may log others, or none."""
    logged = _updated(port, question.given)[1]
    return {
        group: {name: value for name, value in logged[group].items() if name in expected}
        for group, expected in question.expected.items()
    }


def _answer_trajectory(port: Port, question: Question) -> Figures:
    state = port.trajectory(_started(port, question.given), question.given.inputs)
    return _read(port, question.given, state)


ANSWERS: Mapping[str, Callable[[Port, Question], Figures]] = {
    "weights": _answer_weights,
    "forward": _answer_forward,
    "loss": _answer_loss,
    "gradient": _answer_gradient,
    "update": _answer_update,
    "log": _answer_log,
    "trajectory": _answer_trajectory,
}
