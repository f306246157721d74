"""Changes one expression of our twin, to find the change that gives all of somebody's numbers.

A change may have a free number, such as a factor. It is solved for on one case and must then fit the others.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from port_checker.explaining.operations import Instead, Operation, Program, Read, Values

# How close a changed twin must come to the ladder's own numbers; far from them, a correct port may be rounded more.
SAME, FAR = 1e-8, 1e-6
# Anything this close is not a mistake.
RIGHT = 1e-10

# Computes an operation's results from the free number
How = Callable[[Program, Operation, Read, float], Sequence[np.ndarray]]
# Computes an input's numbers from the free number
Input = Callable[[np.ndarray, float], np.ndarray]


@dataclass(frozen=True, eq=False)
class Edit:
    """A change of one expression.

    Attributes:
        what: The change in a few words; {} is the free number.
        span: The expression's place in the source.
        new: The new expression; empty if it cannot be written in place.
        at: The keys of the operations that are changed.
        how: Computes their results.
        inputs: Changed inputs by name.
        neutral: The free number at which nothing changes; None if there is no free number.
        constant: The operand that the free number replaces, if it is a constant of the program.
        shifts: Whether the result is the mean over the free numbers 0, 1, ... up to the number of rows.
    """

    what: str
    span: tuple
    new: str = ""
    at: tuple = ()
    how: How | None = None
    inputs: Mapping[str, Input] = field(default_factory=dict)
    neutral: float | None = None
    constant: int | None = None
    shifts: bool = False

    def occurs(self, program: Program) -> bool:
        """Whether a program contains everything that is changed."""
        return all(key in program.by_key for key in self.at) and all(name in program.inputs for name in self.inputs)

    def before(self, program: Program) -> float:
        """The free number at which a program's results stay the same."""
        assert self.neutral is not None
        if self.constant is None:
            return self.neutral
        return float(program.operations[program.by_key[self.at[0]]].reads[self.constant].val)

    def results(self, program: Program, values: Values, number: float) -> np.ndarray:
        """The changed program's results."""
        with np.errstate(all="ignore"):
            inputs = {program.inputs[name]: change for name, change in self.inputs.items()}
            changed = {var: change(values[var], number) for var, change in inputs.items()}
        return program.results(values, self._instead(program, number), changed)

    def _instead(self, program: Program, number: float) -> dict[int, Instead]:
        def one(operation: Operation) -> Instead:
            assert self.how is not None
            how = self.how
            return lambda read: how(program, operation, read, number)

        places = [program.by_key[key] for key in self.at]
        return {place: one(program.operations[place]) for place in places}


@dataclass(frozen=True, eq=False)
class Case:
    """Numbers to be reproduced.

    Attributes:
        kind: Cases of one kind have the same settings, so that a free number is the same in them.
        program: Our twin's computation.
        values: The values of all its variables.
        target: Somebody's numbers, flat.
        tolerance: The largest error allowed, relative to the largest of them.
    """

    kind: str
    program: Program
    values: Values
    target: np.ndarray
    tolerance: float = SAME

    def unchanged(self) -> np.ndarray:
        """Our twin's results."""
        return self.program.results(self.values, {})

    def given(self, edit: Edit, number: float = 0.0) -> np.ndarray | None:
        """The changed twin's results; None if it cannot compute any."""
        try:
            if edit.shifts:
                rows = len(self.values[self.program.operations[self.program.by_key[edit.at[0]]].writes[0]])
                found = np.mean([edit.results(self.program, self.values, shift) for shift in range(rows)], axis=0)
            else:
                found = edit.results(self.program, self.values, number)
        except (ValueError, KeyError, IndexError, TypeError, FloatingPointError):
            return None
        return found if found.shape == self.target.shape and np.isfinite(found).all() else None

    def same(self, found: np.ndarray | None) -> bool:
        """Whether these are the numbers, and at least a thousand times closer than our twin's if those are off."""
        return self.error(found) <= min(self.tolerance, max(1e-11, 1e-3 * self.off))

    @cached_property
    def off(self) -> float:
        """How far off our twin's own numbers are."""
        return self.error(self.unchanged())

    def error(self, found: np.ndarray | None) -> float:
        """The largest error, relative to the largest target."""
        if found is None or found.shape != self.target.shape or not np.isfinite(self.target).all():
            return math.inf
        scale = np.abs(self.target).max(initial=0.0) or 1.0
        return float(np.abs(found - self.target).max(initial=0.0) / scale)

    def holds(self, edit: Edit, number: float = 0.0) -> bool:
        """Whether the change gives the numbers; if a program has none of it, the unchanged twin must give them."""
        return self.same(self.given(edit, number) if edit.occurs(self.program) else self.unchanged())


@dataclass(frozen=True)
class Found:
    """A change that gives all numbers.

    Attributes:
        edit: The change.
        numbers: The free number in the cases of each kind, if it has one.
    """

    edit: Edit
    numbers: Mapping[str, float]


# Yields changes of one kind for a program; the flag allows changes inside networks
Family = Callable[[Program, bool], Iterator[Edit]]


def search(cases: Sequence[Case], families: Sequence[Family], within: bool, seconds: float) -> list[Found]:
    """Finds the changes that give the numbers of all cases, from the first family that has any.

    Args:
        cases: The numbers to reproduce; the first case is tried first, so our twin should not give it.
        families: Kinds of changes, simple ones first.
        within: Whether operations within networks are changed too.
        seconds: The processor time to use.
    """
    end, program = time.process_time() + seconds, cases[0].program
    # Changes that no network follows are cheap to evaluate.
    for heavy in (False, True):
        for family in families:
            found: list[Found] = []
            for edit in family(program, within):
                if time.process_time() > end:
                    return found
                if _is_heavy(edit, program) != heavy:
                    continue
                if edit.neutral is None and cases[0].holds(edit) and all(case.holds(edit) for case in cases[1:]):
                    found.append(Found(edit, {}))
                elif edit.neutral is not None and (numbers := solved(edit, cases, end)):
                    found.append(Found(edit, numbers))
            if found:
                return found
    return []


def _is_heavy(edit: Edit, program: Program) -> bool:
    return bool(edit.inputs) or any(program.by_key[key] in program.heavy for key in edit.at)


# ---- free numbers --------------------------------------------------------------------------------------------------


def solved(edit: Edit, cases: Sequence[Case], end: float) -> dict[str, float]:
    """The free number for each kind of case, if one gives all the numbers; otherwise empty."""
    found: dict[str, float] = {}
    for kind in dict.fromkeys(case.kind for case in cases):
        alike = [case for case in cases if case.kind == kind]
        if not all(edit.occurs(case.program) for case in alike):
            if not all(case.holds(edit) for case in alike):
                return {}
            continue
        number = next((x for x in _roots(edit, alike, end) if all(case.holds(edit, x) for case in alike)), None)
        if number is None:
            return {}
        found[kind] = number
    return found


# The ways a number is commonly mistaken
RULES: Mapping[str, Callable[[float], float]] = {
    "{}": lambda x: x,
    "{} squared": lambda x: x * x,
    "1 / {}": lambda x: 1.0 / x,
    "1 - {}": lambda x: 1.0 - x,
    "-{}": lambda x: -x,
    "the root of {}": math.sqrt,
    "twice {}": lambda x: 2.0 * x,
    "half of {}": lambda x: x / 2.0,
    "{} - 1": lambda x: x - 1.0,
    "{} + 1": lambda x: x + 1.0,
    "{} cubed": lambda x: x**3,
    "exp({})": math.exp,
    "log({})": math.log,
}

# The start of each search and the width of its first step, relative to the neutral number and in units of its size
STARTS = ((0.0, 0.01), (0.0, 1.0), (-1.0, 0.01), (1.0, 0.01), (-2.0, 0.1), (9.0, 1.0), (-0.9, 0.01))


def _roots(edit: Edit, cases: Sequence[Case], end: float) -> Iterator[float]:
    """Yields numbers that reproduce the worst case's weighted sum, by the secant method from several starts."""
    case = max(cases, key=lambda case: case.off)
    neutral = edit.before(case.program)
    if case.off <= RIGHT:
        yield neutral
        return
    yield from (number for rule in RULES.values() if case.holds(edit, number := _ruled(rule, neutral)))
    weights = np.cos(np.arange(case.target.size))
    scale = np.abs(weights * case.target).sum() or 1.0

    def off(number: float) -> float:
        found = case.given(edit, number)
        return math.nan if found is None else float(weights @ (found - case.target)) / scale

    unit = abs(neutral) or 1.0
    here = off(neutral)
    if all(not abs(off(neutral + step * unit) - here) > 1e-13 for step in (0.1, -0.5, 2.0)):
        return
    for start, width in STARTS:
        if time.process_time() > end:
            return
        x = neutral + start * unit
        root = secant(off, x, x + width * unit)
        if root is not None:
            yield root


def _ruled(rule: Callable[[float], float], value: float) -> float:
    try:
        return rule(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        return value


def secant(off: Callable[[float], float], x: float, y: float) -> float | None:
    """Finds a root by the secant method; None if it does not converge."""
    at_x, at_y = off(x), off(y)
    for _ in range(25):
        if not (math.isfinite(at_x) and math.isfinite(at_y)) or at_x == at_y:
            return None
        if abs(at_y) < 1e-14:
            return y
        x, y, at_x = y, y - at_y * (y - x) / (at_y - at_x), at_y
        if not math.isfinite(y) or abs(y) > 1e9:
            return None
        if abs(y - x) <= 1e-15 * abs(y):
            return y
        at_y = off(y)
    return y if abs(at_y) < 1e-11 else None
