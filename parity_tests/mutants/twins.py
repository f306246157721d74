"""The twins as they are now, and their mutants."""

from functools import cache
from pathlib import Path

from parity_tests.mutants.operators import Mutant, mutants
from parity_tests.pairs import PAIRS

# The twins of a pair, and where their functions are found by name
SIDES = {"jax": "jnp", "torch": "torch"}
# What becomes of a mutant that nothing notices; any other is told by the step that does
SURVIVED = ""


@cache
def source_of(name: str, side: str = "jax") -> str:
    """A twin's source, as it was when it was first asked for: a climb takes hours, and somebody may go on writing."""
    module = getattr(PAIRS[name], side)
    assert module.__file__ is not None
    return Path(module.__file__).read_text(encoding="utf-8")


@cache
def mutants_of(name: str, side: str = "jax") -> list[Mutant]:
    """A twin's mutants."""
    return mutants(source_of(name, side), SIDES[side])
