"""Finds the first rung of the ladder that notices a mutant of a JAX twin."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from parity_tests.engine.caches import forget
from parity_tests.engine.precision import both_in
from parity_tests.ladder.rungs import RUNGS, Errors, tolerance
from parity_tests.ladder.scene import DATASETS, Scene
from parity_tests.mutants.operators import Mutant
from parity_tests.mutants.planting import ENDLESS, IMPORT, PATIENCE, EndlessError, limited, lines_of, planted
from parity_tests.mutants.reasons import reason
from parity_tests.mutants.twins import SURVIVED, source_of
from parity_tests.pairs import PAIRS

# The number of mutants after which compiled programs are dropped: 40 leave 1.6 GiB and 2800 memory maps
ROUND = 200
# The rungs for mutants: those that are cheap and notice much come first. Copying numbers across is not part of a twin.
ORDER = (
    "forward",
    "loss",
    "gradient",
    "update",
    "log",
    "act",
    "rewards",
    "draws",
    "start",
    "shipped path",
    "trajectory",
)
# The dataset that reaches most branches
FIRST = "cornered"


@dataclass(frozen=True)
class Step:
    """A rung under one variant's settings on one dataset."""

    rung: str
    variant: str
    dataset: str

    def __str__(self) -> str:
        return f"{self.rung} ({self.variant}, {self.dataset})"


def steps(name: str) -> Iterator[Step]:
    """All steps that a mutant of a pair has to pass, in double precision."""
    for dataset in (FIRST, *(other for other in DATASETS if other != FIRST)):
        for rung in ORDER:
            for variant in PAIRS[name].variants:
                if dataset == FIRST or not RUNGS[rung].one_dataset:
                    yield Step(rung, variant, dataset)


def climb(name: str, mutants: Sequence[Mutant], tell: Callable[[Mutant, str], None]) -> None:
    """Lets each mutant of a pair's JAX twin climb, and reports the step that notices it; empty if it survives.

    A mutant with a written reason why it computes the same climbs only a few steps.
    """
    for i, mutant in enumerate(mutants, start=1):
        tell(mutant, noticed(name, mutant, shortly=bool(reason(name, "jax", mutant.name))))
        if i % ROUND == 0:
            forget()


def noticed(name: str, mutant: Mutant, shortly: bool = False) -> str:
    """The step that notices the mutant; empty if it survives.

    Steps that never run its line are left out.

    Args:
        name: The pair's name.
        mutant: A mutant of its JAX twin.
        shortly: Whether to use only the default settings and the made-up rows.
    """
    with both_in("float64"):
        if (twin := _twin_with(name, mutant)) is None:
            return IMPORT
        for step in steps(name):
            if shortly and (step.variant, step.dataset) != ("default", FIRST):
                continue
            if mutant.is_passed(passed(name, step)) and (found := _failed(name, twin, step)):
                return found
    return SURVIVED


def _twin_with(name: str, mutant: Mutant) -> ModuleType | None:
    """The twin with the mutant; None if it cannot be imported."""
    try:
        return planted(f"a mutant of {name}", mutant.applied(source_of(name)))
    except Exception:
        return None


def _failed(name: str, twin: ModuleType, step: Step) -> str:
    """The step if the twin fails it, with a note if it does not terminate; otherwise empty."""
    limit = tolerance(PAIRS[name], step.rung, "float64")
    try:
        with limited(PATIENCE):
            found = errors_of(name, twin, step)
    except EndlessError:
        return f"{step}{ENDLESS}"
    except Exception:
        return str(step)
    return SURVIVED if all(value <= limit for value in found.values()) else str(step)


def errors_of(name: str, twin: ModuleType, step: Step) -> Errors:
    """The errors of one step."""
    rung = RUNGS[step.rung]
    return rung.climb(Scene.create(PAIRS[name], twin, step.variant, step.dataset, rung.warm))


@cache
def passed(name: str, step: Step) -> frozenset[int]:
    """The lines of the twin that a step runs."""
    twin = planted(f"the twin {name}", source_of(name))
    with lines_of(twin.__name__) as lines:
        errors_of(name, twin, step)
    return frozenset(lines)
