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
from parity_tests.mutants.planting import ENDLESS, IMPORT
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
# The twins of a pair, and where their functions are found by name
SIDES = {"jax": "jnp", "torch": "torch"}
# What becomes of a mutant that nothing notices; any other is told by the step that does
SURVIVED = ""


@cache
def source_of(name: str, framework: str = "jax") -> str:
    """A twin's source, as it was when it was first asked for: a climb takes hours, and somebody may go on writing."""
    module = getattr(PAIRS[name], framework)
    assert module.__file__ is not None
    return Path(module.__file__).read_text(encoding="utf-8")


@cache
def mutants_of(name: str, framework: str = "jax") -> list[Mutant]:
    """A twin's mutants."""
    return mutants(source_of(name, framework), SIDES[framework])


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
        "mutants": {mutant.name: found[mutant.name] for mutant in mutants_of(name, framework) if mutant.name in found},
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


@cache
def is_pending(name: str, framework: str) -> bool:
    """Whether a twin's mutants have not all been tried yet."""
    return f"{framework}/{name}" in yaml.safe_load((FOLDER / "pending.yaml").read_text(encoding="utf-8"))


def tally(name: str, framework: str, found: Mapping[str, str]) -> dict[str, int]:
    """How many were noticed at each rung, how many are equivalent, and how many survived."""
    return dict(Counter(_fate(name, framework, mutant, step) for mutant, step in found.items()))


def _fate(name: str, framework: str, mutant: str, step: str) -> str:
    if step:
        # Without the settings, which follow in parentheses or brackets
        return step.removesuffix(ENDLESS).partition(" (")[0].partition("[")[0]
    return "equivalent" if proof(name, framework, mutant) else "survived"


def table(framework: str) -> str:
    """What became of the mutants of every twin of a framework, as Markdown."""
    tallies = {
        _titled(name, framework): tally(name, framework, found) for name in PAIRS if (found := read(name, framework))
    }
    tallies["all"] = dict(sum((Counter(counts) for counts in tallies.values()), Counter()))
    return "\n".join({"jax": _by_rung, "torch": _by_test}[framework](tallies))


def _titled(name: str, framework: str) -> str:
    """A pair's title, with how many mutants there are where not all have been tried."""
    more = f" (so far, of {len(mutants_of(name, framework))})" if is_pending(name, framework) else ""
    return PAIRS[name].title + more


def _by_rung(tallies: Mapping[str, Mapping[str, int]]) -> list[str]:
    fates = [fate for fate in (*ORDER, IMPORT, "equivalent", "survived") if fate in tallies["all"]]
    lines = [f"| algorithm | mutants | {' | '.join(fates)} |", "|---" * (2 + len(fates)) + "|"]
    for title, counts in tallies.items():
        cells = [sum(counts.values()), *(counts.get(fate, 0) for fate in fates)]
        lines.append(f"| {title} | {' | '.join(map(str, cells))} |")
    return lines


def _by_test(tallies: Mapping[str, Mapping[str, int]]) -> list[str]:
    kept = [fate for fate in (IMPORT, "equivalent", "survived") if fate in tallies["all"]]
    lines = [f"| algorithm | mutants | noticed by | {' | '.join(kept)} |", "|---" * (3 + len(kept)) + "|"]
    for title, counts in tallies.items():
        tests = sorted((count, test) for test, count in counts.items() if test.startswith("test_"))
        told = ", ".join(f"{test.removeprefix('test_').replace('_', ' ')} {count}" for count, test in reversed(tests))
        told = told if title != "all" else str(sum(count for count, _ in tests))
        lines.append(
            f"| {title} | {sum(counts.values())} | {told} | {' | '.join(str(counts.get(fate, 0)) for fate in kept)} |"
        )
    return lines
