"""The twins in their current state, and their mutants."""

from functools import cache
from pathlib import Path

from parity_tests.mutants.operators import Mutant, mutants
from parity_tests.pairs import PAIRS

# The twins of a pair, and the module in which each finds functions by name
SIDES = {"jax": "jnp", "torch": "torch"}
# The result of a mutant that nothing notices; otherwise it is the step that notices the mutant
SURVIVED = ""


@cache
def source_of(name: str, side: str = "jax") -> str:
    """A twin's source at the time of the first call: a climb takes hours, and the file may change meanwhile."""
    module = getattr(PAIRS[name], side)
    assert module.__file__ is not None
    return Path(module.__file__).read_text(encoding="utf-8")


@cache
def mutants_of(name: str, side: str = "jax") -> list[Mutant]:
    """A twin's mutants."""
    return mutants(source_of(name, side), SIDES[side])
