"""The traps between PyTorch and JAX: a file each, with the right code, the wrong code and their measured sizes.

A trap's module holds:

- `PYTORCH` and `JAX`: what either does unless told otherwise,
- `SHOWS`: what a training shows of it,
- `reference`, `wrong` and `right`: the code,
- `measure`, which returns `Error`s, then `Figure`s.

Its docstring is its title.
"""

import importlib
from collections.abc import Mapping
from types import ModuleType

NAMES = (
    "layer_norm",
    "gelu",
    "standard_deviation",
    "clamp",
    "ties",
    "initialisation",
    "kernel_layout",
    "flatten_order",
    "same_padding",
    "broadcasting",
    "adam_epsilon",
    "clip_norm",
    "schedule",
    "int_division",
    "matmul_precision",
    "dropout",
    "donation",
    "keys",
)
TRAPS: Mapping[str, ModuleType] = {name: importlib.import_module(f"lessons.traps.{name}") for name in NAMES}
