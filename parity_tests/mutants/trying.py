"""The function that runs in a worker process, which cannot find functions of `__main__.py`."""

import warnings
from collections.abc import Sequence

from parity_tests.mutants import climbing, deriving, memory
from parity_tests.mutants.twins import mutants_of

CLIMBS = {"jax": climbing.climb, "torch": deriving.climb}


def climb(name: str, side: str, names: Sequence[str]) -> None:
    """Tries some of a twin's mutants, and stores the results."""
    # Mutants cause warnings that a correct twin does not: infinities, casts, steps in the wrong order.
    warnings.simplefilter("ignore")
    mutants = [mutant for mutant in mutants_of(name, side) if mutant.name in names]
    CLIMBS[side](name, mutants, lambda mutant, step: memory.keep(name, side, mutant, step))
