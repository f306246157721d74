"""Detects terms of a loss with other weights, and numbers added to it or multiplied with it."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jax.extend.core import Literal, Var

from port_checker.explaining.changes import Settings, close, named, shown
from port_checker.explaining.edits import Case
from port_checker.explaining.families.places import is_mean, known_numbers
from port_checker.explaining.operations import Program, Values


def terms_told(cases: Sequence[Case], settings: Settings) -> tuple[str, ...]:
    """Describes the weights of a number's terms, if other weights give all cases."""
    weights: dict[str, np.ndarray] = {}
    names = [said for said, _ in _terms(cases[0].program, cases[0].values)]
    if not 1 < len(names) < 6 or len(set(names)) < len(names):
        return ()
    for kind in dict.fromkeys(case.kind for case in cases):
        alike = [case for case in cases if case.kind == kind]
        values = [dict(_terms(case.program, case.values)) for case in alike]
        if any(found.keys() != set(names) for found in values):
            return ()
        # Cases with large terms would dominate the fit.
        rows = np.array([[found[said] for said in names] for found in values])
        targets = np.array([case.target[0] for case in alike])
        scale = np.abs(rows).max(axis=1)
        found, _, rank, _ = np.linalg.lstsq(rows / scale[:, None], targets / scale, rcond=None)
        given = rows @ found
        if rank < len(names) or len(alike) <= len(names):
            continue
        if not all(case.same(np.array([x])) for case, x in zip(alike, given, strict=True)):
            return ()
        weights[kind] = found
    return _weighed(names, weights, settings) if weights else ()


def _weighed(names: Sequence[str], weights: Mapping[str, np.ndarray], settings: Settings) -> tuple[str, ...]:
    told = []
    for place, said in enumerate(names):
        numbers = {kind: float(found[place]) for kind, found in weights.items()}
        if all(close(number, 1.0) for number in numbers.values()):
            continue
        number = named(numbers, dict.fromkeys(numbers, 1.0), {kind: settings[kind] for kind in numbers})
        if not number:
            return ()
        told.append(f"`{said}` counts {number} times as much")
    return (" and ".join(told),) if told else ()


def _terms(program: Program, values: Values) -> Iterator[tuple[str, float]]:
    """Yields the terms that a number is the sum of, down to products, each with its sign."""

    def read(atom: object) -> np.ndarray:
        return np.asarray(atom.val) if isinstance(atom, Literal) else np.asarray(values[atom])

    def walk(atom: object, sign: float) -> Iterator[tuple[str, float]]:
        operation = program.operations[program.made_by[atom]] if atom in program.made_by else None
        if operation is not None and operation.name in ("add", "sub", "neg") and not operation.inside:
            yield from walk(operation.reads[0], -sign if operation.name == "neg" else sign)
            if len(operation.reads) > 1:
                yield from walk(operation.reads[1], -sign if operation.name == "sub" else sign)
        elif operation is not None and is_mean(program, operation):
            reducer = program.operations[program.made_by[operation.reads[0]]]
            inner = list(walk(reducer.reads[0], sign)) if reducer.name == "reduce_sum" else []
            if len(inner) > 1:
                yield from inner
            else:
                yield program.text(atom), sign * float(read(atom).mean())
        else:
            yield program.text(atom), sign * float(read(atom).mean())

    yield from walk(program.outputs[0], 1.0)


def added(cases: Sequence[Case]) -> tuple[str, ...]:
    """Finds one of our twin's numbers that the port adds a multiple of, or multiplies or divides by."""
    ours = np.array([case.unchanged()[0] for case in cases])
    targets = np.array([case.target[0] for case in cases])
    found = []
    for text, numbers in _means(cases).items():
        if not np.isfinite(numbers).all() or np.ptp(numbers) <= 1e-9 * np.abs(numbers).max():
            continue
        nonzero, product = np.where(numbers == 0, np.nan, numbers), np.where(ours == 0, np.nan, ours)
        for said, expected in (
            ("{} times the mean of `{}` is added to it", (targets - ours) / nonzero),
            ("it is multiplied by {} times the mean of `{}`", targets / (nonzero * product)),
            ("it is multiplied by {} and divided by the mean of `{}`", targets * numbers / product),
        ):
            factor = float(np.median(expected))
            if not np.isfinite(expected).all() or not all(close(float(x), factor) for x in expected):
                continue
            found.append(said.format(shown(factor), text))
    return tuple(found[:1])


def _means(cases: Sequence[Case]) -> dict[str, np.ndarray]:
    found: dict[str, list[float]] = {}
    for case in cases:
        for var, text in known_numbers(case.program).items():
            if isinstance(var, Var) and var in case.values:
                found.setdefault(text, []).append(float(np.mean(case.values[var])))
    return {text: np.array(numbers) for text, numbers in found.items() if len(numbers) == len(cases)}
