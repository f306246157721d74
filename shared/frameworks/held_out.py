"""Calls a twin's own functions and networks on held-out rows, in either framework."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from shared.data.transitions import Batch, SarsaBatch

UPDATES = 4
"""Updates on consecutive batches: enough for an actor that is updated less often than its critics."""

# Arguments that only depend on the update's number, with their values late in a run
_LATE = {"delayed": True, "copied": False, "copies": False, "move_targets": False}
_LATE |= {"pretrains": False, "warms_up": False, "in_bc_steps": False}


def late(trainer: type) -> type:
    """A trainer's class whose updates, whatever their number, are those late in a run."""
    return type(trainer.__name__, (trainer,), {name: value for name, value in _LATE.items() if hasattr(trainer, name)})


def is_measured(module: ModuleType, update: Callable, rows: Any, known: Mapping[str, Any]) -> bool:
    """Whether an update only needs a batch of rows, and its draws only need known arguments."""
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
    """The arguments of an update that depend on its number."""
    return {name: _LATE[name] for name in inspect.signature(update).parameters if name in _LATE}


# ---- measurements on the data's actions ----------------------------------------------------------------------------

# Rows in a part, and the most parts
_ROWS, _PARTS = 1_000, 10

# Like AWR's `LARGEST`: tanh never reaches 1, but the data's actions may
_LARGEST = 0.999999


class Outputs(NamedTuple):
    """The outputs of a learner's networks for the data's actions in B rows.

    Attributes:
        q: Each critic's values of the actions; empty without a critic that takes actions.
        log_prob: (B,), from the twin's own `log_prob`; None if it has none.
        policy: The actor's output for the observations; None if there is a `log_prob` or no such actor.
    """

    q: Sequence[Any]
    log_prob: Any
    policy: Any


def spread(rows: int) -> Iterator[np.ndarray]:
    """Yields indices of evenly spaced rows, in parts of equal size."""
    size = min(rows, _ROWS)
    parts = min(_PARTS, rows // size)
    yield from np.linspace(0, rows - 1, size * parts).astype(int).reshape(parts, size)


def outputs(module: ModuleType, learner: Any, call_of: Callable[[Any], Callable], rows: Any) -> Outputs:
    """Calls the networks of a trainer or a state, which have the same names in all algorithms.

    Args:
        module: The twin.
        learner: Its trainer or train state.
        call_of: Maps a network to the method whose signature names its inputs.
        rows: Rows with `observations` and `actions`.
    """
    seen, actions = rows.observations, rows.actions
    q = []
    for critic in (getattr(learner, name) for name in ("critic", "critic_1", "critic_2") if hasattr(learner, name)):
        inputs = _inputs(call_of(critic))
        if inputs == ["observations", "actions"]:
            q.append(critic(seen, actions))
        elif inputs == ["observations"]:
            values = critic(seen)
            q.append(module.value(values[0] if isinstance(values, tuple) else values, actions))
    actor: Any = getattr(learner, "actor", None)
    if hasattr(module, "log_prob"):
        return Outputs(q, module.log_prob(actor, seen, actions), None)
    is_alone = actor is not None and _inputs(call_of(actor)) == ["observations"]
    return Outputs(q, None, actor(seen) if is_alone else None)


def _inputs(call: Callable) -> list[str]:
    """The names of the required arguments."""
    parameters = inspect.signature(call).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.name != "self"]


def measured(module: ModuleType, found: Outputs, actions: np.ndarray) -> dict[str, float]:
    """The mean value of the data's actions, and their mean log-likelihood if the policy has one."""
    likely = _log_likelihood(module, found, actions)
    means = {} if likely is None else {"log_likelihood": float(likely.mean())}
    if found.q:
        means["mean_q"] = float(np.mean([np.mean(q) for q in found.q]))
    return means


def _log_likelihood(module: ModuleType, found: Outputs, actions: np.ndarray) -> np.ndarray | None:
    """The log-likelihood of each action, (B,); None for a policy without a distribution."""
    if found.log_prob is not None:
        return np.asarray(found.log_prob, np.float64)
    if isinstance(found.policy, tuple):
        mean, std = found.policy
        # A twin that samples, but has no density of its own for given actions, squashes its samples by tanh.
        squashed = hasattr(module, "sample") or hasattr(module, "raw_sample")
        return None if std is None else normal_log_prob(actions, mean, std, squashed)
    if found.policy is not None and actions.ndim == 1:
        logits = np.asarray(found.policy, np.float64)
        logits = logits - logits.max(axis=1, keepdims=True)
        chosen = np.take_along_axis(logits, actions[:, None].astype(int), axis=1)[:, 0]
        return chosen - np.log(np.exp(logits).sum(axis=1))
    return None


def normal_log_prob(actions: np.ndarray, mean: np.ndarray, std: np.ndarray, squashed: bool) -> np.ndarray:
    """The log-density (B,) of actions (B, A) under a normal distribution, optionally squashed to [-1, 1] by tanh."""
    actions, mean, std = (np.asarray(column, np.float64) for column in (actions, mean, std))
    log_slope: Any = 0.0
    if squashed:
        actions = np.clip(actions, -_LARGEST, _LARGEST)
        log_slope = np.log1p(actions) + np.log1p(-actions)
        actions = np.arctanh(actions)
    log_density = -0.5 * np.square((actions - mean) / std) - np.log(std) - 0.5 * math.log(2.0 * math.pi)
    return (log_density - log_slope).sum(axis=1)


def averaged(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means over parts of equal size."""
    return {name: float(np.mean([part[name] for part in parts])) for name in (parts[0] if parts else ())}
