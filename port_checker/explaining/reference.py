"""Traces our twin's computation of a group of figures, and builds the cases that a change must explain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np

from parity_tests.pairs import PAIRS
from port_checker.explaining.edits import FAR, RIGHT, SAME, Case
from port_checker.explaining.operations import Program
from port_checker.finding.answers import answer
from port_checker.finding.figures import Figures
from port_checker.finding.loading import NotWrittenError
from port_checker.finding.port import OwnTwin, Port
from port_checker.finding.questions import Given, Question
from shared.errors import InputError


@cache
def reference(name: str) -> OwnTwin:
    """Our twin, wrapped as a port."""
    return OwnTwin(name, PAIRS[name].jax, PAIRS[name])


def inputs_of(given: Given) -> dict[str, Any]:
    """The inputs that can be changed: trees of arrays, by name."""
    return {name: value for name, value in given.inputs[0].items() if _is_tree(value)}


def _is_tree(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)


def arguments_of(name: str, rung: str, group: str, given: Given) -> dict[str, Any]:
    """The arguments of the program for a group of figures."""
    own = reference(name)
    state = own.state(given.config, given.sizes, given.start)
    parts = {"parts": own.differentiated(group, state)} if rung == "loss" else {}
    return {"state": state, **parts, **inputs_of(given)}


def program_of(name: str, rung: str, group: str, given: Given) -> Program:
    """Our twin's computation of a group, which is a loss, an output or a metric."""
    fixed = tuple(sorted((key, value) for key, value in given.inputs[0].items() if not _is_tree(value)
                         and key != "config" and not isinstance(value, tuple)))  # fmt: skip
    shapes = str(jax.tree.map(np.shape, inputs_of(given)))
    key = name, rung, group, given.config, given.sizes, fixed, shapes
    if key not in _programs:
        arguments = arguments_of(name, rung, group, given)
        _programs[key] = Program(reference(name).module, _function(name, rung, group, given), arguments)
    return _programs[key]


_programs: dict[Any, Program] = {}


def forget_references() -> None:
    """Drops the cached traces of our twins."""
    _programs.clear()
    reference.cache_clear()


def _function(name: str, rung: str, group: str, given: Given) -> Callable[..., Any]:
    own, constants = reference(name), given.inputs[0]

    def loss(state: Any, parts: Any, **inputs: Any) -> Any:
        return own.plain_loss(group, state, {**constants, **inputs}, parts)

    def output(state: Any, batch: Any, **inputs: Any) -> Any:
        return own.pair.outputs(state, batch)[group]

    def metric(state: Any, **inputs: Any) -> Any:
        return own.plain_update(state, {**constants, **inputs})[1][group]

    functions: dict[str, Callable[..., Any]] = {"loss": loss, "forward": output, "log": metric}
    return functions[rung]


def kind_of(question: Question) -> str:
    """Identifies the settings and the action bound of a question."""
    return f"{question.where.partition(',')[0]} {question.given.sizes[2]:g}"


def settings_of(asked: Sequence[Question]) -> dict[str, dict[str, float]]:
    """The numeric settings, by kind of question."""
    found = {}
    for question in asked:
        values = {**vars(question.given.config), "max_action": question.given.sizes[2]}
        found[kind_of(question)] = {name: float(x) for name, x in values.items() if type(x) in (int, float)}
    return found


def case_of(name: str, rung: str, group: str, question: Question, target: np.ndarray, tolerance: float = SAME) -> Case:
    """Makes a case from the numbers of a group."""
    program = program_of(name, rung, group, question.given)
    values = program.values(arguments_of(name, rung, group, question.given))
    return Case(kind_of(question), program, values, np.ravel(np.asarray(target, np.float64)), tolerance)


# ---- other data than the ladder's ----------------------------------------------------------------------------------


def changed(question: Question, inputs: Mapping[str, Any] | None = None, start: Any = None) -> Question:
    """The question with other inputs, or other weights to start from."""
    given = question.given
    first = {**given.inputs[0], **(inputs or {})}
    return replace(question, given=Given(given.config, given.sizes, start or given.start, [first]))


def with_row(question: Question, row: int) -> Question:
    """The question with a batch in which one row replaces all others."""
    rows = rows_of(question)

    def repeated(leaf: Any) -> Any:
        return jax.numpy.asarray(np.repeat(np.asarray(leaf)[row : row + 1], rows, axis=0))

    changes = {
        name: jax.tree.map(lambda leaf: repeated(leaf) if np.ndim(leaf) and len(leaf) == rows else leaf, value)
        for name, value in inputs_of(question.given).items()
    }
    return changed(question, changes)


def rows_of(question: Question) -> int:
    """The batch's number of rows."""
    return len(jax.tree.leaves(question.given.inputs[0]["batch"])[0])


def shaken(question: Question, strength: float) -> Question:
    """The question at other weights and inputs, where values take both signs and reach their bounds."""
    rng = np.random.default_rng(0)

    def shake(value: Any) -> np.ndarray:
        value = np.asarray(value)
        if value.dtype.kind != "f":
            return value
        return value + strength * (value.std() + 0.1) * rng.normal(size=value.shape)

    def scatter(value: Any) -> Any:
        value = np.asarray(value)
        # Flags, masks and values within bounds stay unchanged.
        if value.dtype.kind != "f" or value.ndim < 2 or np.abs(value).max() <= 1.0:
            return jax.numpy.asarray(value)
        return jax.numpy.asarray(value + 3.0 * strength * value.std() * rng.normal(size=value.shape))

    start = {
        part: values if part.endswith("_optimizer") else {name: shake(value) for name, value in values.items()}
        for part, values in question.given.start.items()
    }
    batch = question.given.inputs[0]["batch"]
    return changed(question, {"batch": jax.tree.map(scatter, batch)}, start)


def figures_of(port: Port, question: Question) -> Figures | None:
    """A port's figures; None if it gives none."""
    try:
        return answer(port, question)
    except (InputError, NotWrittenError):
        return None


def group_of(port: Port, question: Question, group: str) -> np.ndarray | None:
    """A port's numbers for one group, flattened."""
    return flat((figures_of(port, only(question, group)) or {}).get(group))


def only(question: Question, group: str) -> Question:
    """The question restricted to one group, if the rung allows that."""
    if question.rung == "forward":
        return question
    return replace(question, expected={name: value for name, value in question.expected.items() if name == group})


def flat(values: Mapping[str, np.ndarray] | None) -> np.ndarray | None:
    """A group's numbers in the order of their names; None if there are none."""
    if not values:
        return None
    return np.concatenate([np.ravel(np.asarray(values[name], np.float64)) for name in sorted(values)])


def cases(port: Port, group: str, asked: Sequence[Question], answers: Sequence[Figures]) -> list[Case]:
    """A group's numbers in all questions and on further data, worst first among the ladder's own."""
    name, rung = port.pair.name, asked[0].rung
    found: list[Case] = []
    kinds: dict[str, Question] = {}
    for question, figures in zip(asked, answers, strict=True):
        target = flat(figures.get(group))
        if target is not None and group in question.expected:
            found.append(case_of(name, rung, group, question, target))
            if found[-1].off > RIGHT:
                kinds.setdefault(found[-1].kind, question)
    # Two settings are enough to distinguish a rule from a number.
    further = [other for question in [*kinds.values(), *asked][:2] for other in _further(question)]
    targets = [(question, group_of(port, question, group)) for question in further]
    # Far from the ladder's numbers, a forgotten cap gives infinities.
    far = [
        case_of(name, rung, group, question, target, FAR)
        for question, target in targets
        if target is not None and np.isfinite(target).all()
    ]
    return wrongest_first([*found, *far])


def wrongest_first(cases: Sequence[Case]) -> list[Case]:
    """Sorts cases by our twin's error, largest first; cases that are far off keep their order."""
    return sorted(cases, key=lambda case: -min(1e-6, case.off))


def _further(question: Question) -> list[Question]:
    found = [shaken(question, 0.3), shaken(question, 2.0)]
    return [*found, with_row(question, 3)] if question.rung == "loss" else found
