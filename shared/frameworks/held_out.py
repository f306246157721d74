"""How a twin's own `draw_noise` and `update` are called on held-out rows, whichever framework it is written in."""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from shared.data.transitions import Batch, SarsaBatch

UPDATES = 4
"""On batches one after another: enough for an actor that is updated less often than its critics."""

# What only the number of the update decides, and how it is late in a run
_LATE = {"delayed": True, "copied": False, "copies": False, "move_targets": False}
_LATE |= {"pretrains": False, "warms_up": False, "in_bc_steps": False}


def is_measured(module: ModuleType, update: Callable, rows: Any, known: Mapping[str, Any]) -> bool:
    """Whether a twin learns from batches of rows alone, and its draws need no more than what is known."""
    parameters = inspect.signature(update).parameters
    if parameters["batch"].annotation not in (Batch, SarsaBatch) or not isinstance(rows, Batch | SarsaBatch):
        return False
    others = [name for name in parameters if name not in ("batch", "noise")]
    wanted = inspect.signature(module.draw_noise).parameters
    return all(name in _LATE for name in others) and all(name in known or _known(name) for name in wanted)


def _known(name: str) -> bool:
    return name in ("action_dim", *_LATE)


def drawing(module: ModuleType, rows: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `draw_noise` that are known or follow from the rows."""
    actions = np.shape(rows.actions)
    given = {**known, "action_dim": actions[-1] if len(actions) > 1 else 1, **_LATE}
    return {name: given[name] for name in inspect.signature(module.draw_noise).parameters if name in given}


def flags(update: Callable) -> dict[str, bool]:
    """The arguments of an update that its number decides."""
    return {name: _LATE[name] for name in inspect.signature(update).parameters if name in _LATE}
