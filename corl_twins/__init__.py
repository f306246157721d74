"""Offline reinforcement learning from Python: train an algorithm, load what a run has learnt, and evaluate it.

Importing this package is quick. NumPy and the frameworks are imported when you name what needs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corl_twins.data import Dataset, make_dataset
    from corl_twins.listing import Algorithm, algorithms
    from corl_twins.policies import Evaluation, Policy, evaluate, load_policy
    from corl_twins.training import Run, train
    from shared.errors import InputError, RunError

__all__ = [
    "Algorithm",
    "Dataset",
    "Evaluation",
    "InputError",
    "Policy",
    "Run",
    "RunError",
    "algorithms",
    "evaluate",
    "load_policy",
    "make_dataset",
    "train",
]

_MODULES = {
    "corl_twins.data": ("Dataset", "make_dataset"),
    "corl_twins.listing": ("Algorithm", "algorithms"),
    "corl_twins.policies": ("Evaluation", "Policy", "evaluate", "load_policy"),
    "corl_twins.training": ("Run", "train"),
    "shared.errors": ("InputError", "RunError"),
}


def __getattr__(name: str) -> Any:
    """Imports a name from the list above on first use."""
    for module, names in _MODULES.items():
        if name in names:
            from corl_twins.place import enter

            enter()
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
