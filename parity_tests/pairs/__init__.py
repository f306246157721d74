"""The adapters for the parity ladder: one short module for each algorithm, found because it is in this folder."""

import importlib
import pkgutil

from parity_tests.families import Family
from parity_tests.pair import FinitePair, Pair

MODULES = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
_PAIRS = [module for module in MODULES if hasattr(module, "PAIR")]
PAIRS: dict[str, Pair] = {module.PAIR.name: module.PAIR for module in _PAIRS}

# The first pair of each family, for what depends on the kind of an algorithm rather than on its equations
_FIRST: dict[Family, str] = {}
for _name, _pair in PAIRS.items():
    _FIRST.setdefault(_pair.family, _name)
ONE_OF_EACH = [*_FIRST.values()]


def is_finite(name: str) -> bool:
    """Whether a pair chooses one of finitely many actions."""
    return isinstance(PAIRS[name], FinitePair)
