"""Published mistakes, each rebuilt in a few lines: what it did, its symptom, and the check that finds it.

A case's module holds `wrong` and `right`; `check`, which raises an AssertionError for a mistaken implementation; and
`measure`, which returns the symptom as `Figure`s. Its docstring is its title.
"""

import importlib
from collections.abc import Mapping
from types import ModuleType

NAMES = ("awac", "done_flag", "warm_up", "decoder", "multiplier")
CASES: Mapping[str, ModuleType] = {name: importlib.import_module(f"lessons.case_studies.{name}") for name in NAMES}
