"""A mutant on the ladder: the first rung that notices it."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FrameType, ModuleType
from typing import Any

from parity_tests.ladder import RUNGS, Errors, tolerance
from parity_tests.mutants.operators import Mutant
from parity_tests.mutants.results import ORDER, source_of
from parity_tests.pairs import PAIRS
from parity_tests.precision import both_in
from parity_tests.scene import DATASETS, Scene

# The dataset that reaches most
FIRST = "cornered"
# Seconds after which a rung does not come to an end
PATIENCE = 120


@dataclass(frozen=True)
class Step:
    """A rung under one variant's settings on one dataset."""

    rung: str
    variant: str
    dataset: str

    def __str__(self) -> str:
        return f"{self.rung} ({self.variant}, {self.dataset})"


def steps(name: str) -> Iterator[Step]:
    """All that a mutant of a pair has to pass, in double precision."""
    for dataset in (FIRST, *(other for other in DATASETS if other != FIRST)):
        for rung in ORDER:
            for variant in PAIRS[name].variants:
                if dataset == FIRST or not RUNGS[rung].one_dataset:
                    yield Step(rung, variant, dataset)


def planted(name: str, source: str) -> ModuleType:
    """The JAX twin with this source."""
    twin = ModuleType(f"a mutant of {name}")
    exec(compile(source, twin.__name__, "exec"), vars(twin))
    return twin


def noticed(name: str, mutant: Mutant, shortly: bool = False) -> str:
    """The step that notices the mutant; empty: it survives.

    Steps that never come by its line are left out.

    Args:
        name: The pair's.
        mutant: Of its JAX twin.
        shortly: Under the default settings and on the made-up rows alone.
    """
    with both_in("float64"):
        source = source_of(name)
        try:
            twin = planted(name, mutant.applied(source))
        except Exception:
            return "import"
        for step in steps(name):
            if shortly and (step.variant, step.dataset) != ("default", FIRST):
                continue
            if _comes_by(name, step, mutant) and not _holds(name, twin, step):
                return str(step)
    return ""


def _comes_by(name: str, step: Step, mutant: Mutant) -> bool:
    if mutant.lines is None:
        return True
    first, last = mutant.lines
    return any(first <= line <= last for line in passed(name, step))


def _holds(name: str, twin: ModuleType, step: Step) -> bool:
    limit = tolerance(PAIRS[name], step.rung, "float64")
    try:
        with _limited(PATIENCE):
            found = climb(name, twin, step)
    except Exception:
        return False
    return all(value <= limit for value in found.values())


def climb(name: str, twin: ModuleType, step: Step) -> Errors:
    """The errors of one step."""
    rung = RUNGS[step.rung]
    return rung.climb(Scene.create(PAIRS[name], twin, step.variant, step.dataset, rung.warm))


@cache
def passed(name: str, step: Step) -> frozenset[int]:
    """The lines of the twin that a step comes by."""
    twin = planted(name, source_of(name))
    with _lines_of(twin.__name__) as lines:
        climb(name, twin, step)
    return frozenset(lines)


@contextmanager
def _lines_of(file: str) -> Iterator[set[int]]:
    """Collects the numbers of the lines that are run in a file."""
    found: set[int] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename == file else None

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        found.add(frame.f_lineno)
        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield found
    finally:
        sys.settrace(before)


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError after so many seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before: Callable | int | None = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
