"""Offline reinforcement learning from Python: train an algorithm, load what a run has learnt, and evaluate it.

Importing this package is quick. The frameworks are imported when you call a function that needs one.
"""

from typing import TYPE_CHECKING, Any

from corl_twins.algorithms import Algorithm, algorithms
from corl_twins.data import Dataset, make_dataset
from corl_twins.policies import Evaluation, Policy, evaluate, load_policy
from corl_twins.training import Run, train

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """The two errors, which live among the project's other modules."""
    if name not in ("InputError", "RunError"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from corl_twins.place import enter

    enter()
    from shared import errors

    return getattr(errors, name)
