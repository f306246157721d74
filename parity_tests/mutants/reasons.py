"""Reasons why mutants that nothing notices compute the same, written by people in `equivalent.yaml`."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Reason:
    """The reason why some mutants compute the same.

    Attributes:
        twins: A pattern that the twin's name, such as `jax/td3_bc`, matches.
        mutants: A pattern that the mutants' names match.
        because: The proof, in one sentence.
    """

    twins: str
    mutants: str
    because: str

    def covers(self, name: str, side: str, mutant: str) -> bool:
        """Whether it applies to this mutant of this twin."""
        return bool(re.fullmatch(self.twins, f"{side}/{name}") and re.fullmatch(self.mutants, mutant))


@cache
def reasons() -> list[Reason]:
    """All reasons that have been written."""
    entries = yaml.safe_load((Path(__file__).parent / "equivalent.yaml").read_text(encoding="utf-8"))
    return [Reason(entry.get("twins", ".*"), entry["mutants"], entry["because"]) for entry in entries]


def reason(name: str, side: str, mutant: str) -> str:
    """The reason why a mutant computes the same; empty if nobody has written one."""
    return next((each.because for each in reasons() if each.covers(name, side, mutant)), "")
