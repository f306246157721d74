"""Results files: what became of each mutant of a twin, on what, and how it was found out."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from parity_tests.mutants.operators import Mutant, mutants
from parity_tests.pairs import PAIRS
from shared.files import write_atomically
from shared.runs.machine import hardware, versions

FOLDER = Path(__file__).parent
# The rungs that a mutant climbs: what is cheap and sees much comes first. Numbers handed over and back are no business
# of a twin's.
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
# What becomes of a mutant that nothing notices; any other is told by the step that does
SURVIVED = ""


@cache
def source_of(name: str, framework: str = "jax") -> str:
    """A twin's source, as it was when it was first asked for: a climb takes hours, and somebody may go on writing."""
    module = getattr(PAIRS[name], framework)
    assert module.__file__ is not None
    return Path(module.__file__).read_text(encoding="utf-8")


def mutants_of(name: str, framework: str = "jax") -> list[Mutant]:
    """A twin's mutants."""
    return mutants(source_of(name, framework), {"jax": "jnp", "torch": "torch"}[framework])


def path_of(name: str, framework: str) -> Path:
    """A twin's results file."""
    return FOLDER / "results" / f"{framework}-{name.replace('/', '-')}.json"


def read(name: str, framework: str = "jax") -> dict[str, str]:
    """What became of each mutant, by its name; empty where nobody has tried yet."""
    path = path_of(name, framework)
    return json.loads(path.read_text(encoding="utf-8"))["mutants"] if path.exists() else {}


def write(name: str, framework: str, found: Mapping[str, str], seconds: float, command: str) -> None:
    """Writes a twin's results file."""
    packages = ("jax", "flax", "optax", "numpy", "torch")
    content: dict[str, Any] = {
        "command": command,
        "hardware": hardware(),
        "versions": versions(*packages),
        "seconds": round(seconds, 1),
        "mutants": dict(found),
    }
    path = path_of(name, framework)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


@dataclass(frozen=True)
class Equivalent:
    """Mutants that compute the same, and why.

    Attributes:
        twins: A pattern that the twin's name, as `jax/td3_bc`, matches.
        mutants: A pattern that the mutants' names match.
        because: The proof, in a sentence.
    """

    twins: str
    mutants: str
    because: str

    def covers(self, name: str, framework: str, mutant: str) -> bool:
        """Whether it speaks of this mutant of this twin."""
        return bool(re.fullmatch(self.twins, f"{framework}/{name}") and re.fullmatch(self.mutants, mutant))


@cache
def equivalents() -> list[Equivalent]:
    """All that have been proven."""
    entries = yaml.safe_load((FOLDER / "equivalent.yaml").read_text(encoding="utf-8"))
    return [Equivalent(entry.get("twins", ".*"), entry["mutants"], entry["because"]) for entry in entries]


def proof(name: str, framework: str, mutant: str) -> str:
    """Why a mutant is equivalent; empty where nobody has proven it."""
    return next((e.because for e in equivalents() if e.covers(name, framework, mutant)), "")


def tally(name: str, framework: str, found: Mapping[str, str]) -> dict[str, int]:
    """How many were noticed at each rung, how many are equivalent, and how many survived."""
    return dict(Counter(_fate(name, framework, mutant, step) for mutant, step in found.items()))


def _fate(name: str, framework: str, mutant: str, step: str) -> str:
    if step:
        return step.partition(" (")[0]
    return "equivalent" if proof(name, framework, mutant) else "survived"


def table() -> str:
    """What became of every twin's mutants, as Markdown."""
    tallies = {name: tally(name, "jax", found) for name in PAIRS if (found := read(name))}
    fates = [fate for fate in (*ORDER, "import", "equivalent", "survived") if any(fate in t for t in tallies.values())]
    lines = [f"| algorithm | mutants | {' | '.join(fates)} |", "|---" * (2 + len(fates)) + "|"]
    rows = {PAIRS[name].title: counts for name, counts in tallies.items()}
    rows["all"] = {fate: sum(counts.get(fate, 0) for counts in tallies.values()) for fate in fates}
    for title, counts in rows.items():
        cells = [sum(counts.values()), *(counts.get(fate, 0) for fate in fates)]
        lines.append(f"| {title} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
