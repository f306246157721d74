"""One part in one update: its values before the update, and afterwards in the reference and in a port."""

from dataclasses import dataclass

import numpy as np

from port_checker.explaining.reference import flat
from port_checker.finding.port import Parts
from port_checker.finding.questions import Question
from shared.frameworks.exchange import Named

# How closely a rule must explain numbers, relative to the largest of them
EXACT = 1e-7

# A rule with a free number is accepted only if it fits at least this many numbers.
ENOUGH = 3


@dataclass(frozen=True, eq=False)
class Step:
    """One part in one update.

    Attributes:
        question: The update.
        part: The part's name.
        before: All parts before the update.
        right: All parts after the reference's update.
        ours: All parts after the port's update.
    """

    question: Question
    part: str
    before: Parts
    right: Parts
    ours: Parts

    @property
    def number(self) -> str:
        """The update's number, taken from the question."""
        return self.question.where.rpartition("update ")[2]

    @property
    def settings(self) -> str:
        """The settings of the update."""
        return self.question.where.partition(",")[0]

    def weights(self, when: str, part: str = "") -> np.ndarray:
        """A part's weights, flattened."""
        return _flat(getattr(self, when)[part or self.part])

    def moments(self, when: str, kind: str) -> np.ndarray:
        """Adam's first or second moments."""
        values = getattr(self, when)[f"{self.part}_optimizer"]
        return _flat({name: x for name, x in values.items() if name.startswith(f"{kind}/")})

    def moved(self, when: str, part: str = "") -> np.ndarray:
        """How far a part's weights have moved."""
        return self.weights(when, part) - self.weights("before", part)

    @property
    def counted(self) -> bool:
        """Whether the optimiser is Adam, which counts its steps; gradient descent reveals only its momentum."""
        return "steps" in self.before[f"{self.part}_optimizer"]

    def steps(self, when: str) -> int:
        """The number of steps that Adam has made."""
        return int(getattr(self, when)[f"{self.part}_optimizer"]["steps"])


def _flat(values: Named) -> np.ndarray:
    found = flat(values)
    assert found is not None
    return found


# Sentences about a part; {} stands for its name.
Sentences = tuple[str, ...]

VAGUE = "{}: it goes wrong in `update`: "


def same(ours: np.ndarray, theirs: np.ndarray, scale: float = 0.0) -> bool:
    """Whether numbers are equal up to rounding, relative to the largest or to `scale`, the size of their whole."""
    limit = EXACT * max(np.abs(theirs).max(initial=0.0), scale)
    return ours.shape == theirs.shape and bool(np.abs(ours - theirs).max(initial=0.0) <= limit)


def factor(ours: np.ndarray, theirs: np.ndarray) -> float | None:
    """The factor by which the first array is a multiple of the second; None if there is none."""
    square = float(theirs @ theirs)
    if not square or len(theirs) < ENOUGH:
        return None
    number = float(ours @ theirs) / square
    return number if same(ours, number * theirs, np.abs(theirs).max() if abs(number) < EXACT else 0.0) else None


def rounded(number: float) -> str:
    """Formats a measured number."""
    return f"{number:.4g}"
