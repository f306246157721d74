"""Records the branches that a twin's deciding operations take: those that pick one of their operands, entry by entry.

A batch for which such an operation always picks the same operand does not test the other one: `abs` of positive numbers
is the identity.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from parity_tests.engine.interpreter import watched


class Decision(NamedTuple):
    """A deciding operation: the line of the twin that calls it, and its name in its framework."""

    line: int
    operation: str


# The sides that each operation took, by name
Sides = dict[Decision, set[str]]
# Returns the sides that an operation may take, each with whether some entry took it
Rule = Callable[..., Mapping[str, Any]]


def _compared(x: Any, y: Any) -> Mapping[str, Any]:
    if np.isinf(x).all() or np.isinf(y).all():
        return {}
    return {"left above right": np.any(x > y), "left below right": np.any(x < y)}


def _bounded(low: Any, x: Any, high: Any) -> Mapping[str, Any]:
    """An infinite bound does not count."""
    inside = {"inside": np.any((x > low) & (x < high))}
    below = {"below": np.any(x < low)} if np.isfinite(low).all() else {}
    above = {"above": np.any(x > high)} if np.isfinite(high).all() else {}
    return inside | below | above


def _signed(x: Any) -> Mapping[str, Any]:
    return {"positive": np.any(x > 0), "negative": np.any(x < 0)}


def _chosen(which: Any, *cases: Any) -> Mapping[str, Any]:
    return {f"case {i}": np.any(np.asarray(which).astype(int) == i) for i in range(len(cases))}


def _picked(places: Any) -> Mapping[str, Any]:
    """For a maximum along an axis, whether it occurs at more than one place."""
    return {"several places": len(np.unique(places)) > 1}


# ---- JAX -----------------------------------------------------------------------------------------------------------

IN_JAX: Mapping[str, Callable[[tuple, list], Mapping[str, Any]]] = {
    "max": lambda inputs, outputs: _compared(*inputs),
    "min": lambda inputs, outputs: _compared(*inputs),
    "clamp": lambda inputs, outputs: _bounded(*inputs),
    "abs": lambda inputs, outputs: _signed(*inputs),
    "sign": lambda inputs, outputs: _signed(*inputs),
    "select_n": lambda inputs, outputs: _chosen(*inputs),
    "argmax": lambda inputs, outputs: _picked(*outputs),
    "argmin": lambda inputs, outputs: _picked(*outputs),
}


@contextmanager
def jax_sides(file: str) -> Iterator[Sides]:
    """Collects the sides that a JAX twin's operations take in programs that are traced and computed in this context."""
    found: Sides = defaultdict(set)
    lines: dict[int, tuple[Any, int]] = {}

    def line_of(eqn: Any) -> int:
        # Keeping the operation prevents another one from getting the same id.
        if id(eqn) not in lines:
            lines[id(eqn)] = eqn, _line(eqn, file)
        return lines[id(eqn)][1]

    def watch(calls: Sequence[Any], inputs: tuple, outputs: list) -> None:
        name = calls[-1].primitive.name
        # JAX's own functions keep the lines of their first caller, so the outermost call has the right line.
        line = next(filter(None, map(line_of, calls)), 0) if name in IN_JAX else 0
        if line:
            _note(found, Decision(line, name), IN_JAX[name](inputs, outputs))

    with watched(watch):
        yield found


def _line(eqn: Any, file: str) -> int:
    """The innermost line of the file that leads to an operation; 0 if none does."""
    traceback = eqn.source_info.traceback
    return next((frame.line_num for frame in traceback.frames if frame.file_name == file), 0) if traceback else 0


def _note(found: Sides, decision: Decision, sides: Mapping[str, Any]) -> None:
    """Records the sides taken, and those not taken, which count as missing until another batch takes them."""
    taken = {side for side, hit in sides.items() if hit}
    missing = {f"not {side}" for side in sides if side not in taken}
    found[decision] |= taken | missing


def missing(found: Sides) -> list[str]:
    """Describes the sides that no batch took."""
    return [
        f"line {line}: {operation}: never {side.removeprefix('not ')}"
        for (line, operation), sides in sorted(found.items())
        for side in sorted(sides)
        if side.startswith("not ") and side.removeprefix("not ") not in sides
    ]


# ---- PyTorch -------------------------------------------------------------------------------------------------------


def _torch_bounded(x: Any, min: Any = None, max: Any = None) -> Mapping[str, Any]:
    low, high = (-np.inf if min is None else min), (np.inf if max is None else max)
    return _bounded(np.asarray(low), x, np.asarray(high))


def _torch_extreme(x: Any, *args: Any, **named: Any) -> Mapping[str, Any]:
    axis = named.get("dim", named.get("axis", args[0] if args else None))
    return _picked(np.argmin(x, axis=axis)) if isinstance(axis, int) else {}


IN_TORCH: Mapping[str, Rule] = {
    "maximum": _compared,
    "minimum": _compared,
    "clamp": _torch_bounded,
    "clip": _torch_bounded,
    "abs": _signed,
    "sign": _signed,
    "relu": lambda x, *args, **named: _signed(x),
    "where": lambda which, *cases: _chosen(~np.asarray(which), *cases),
    "min": _torch_extreme,
    "max": _torch_extreme,
    "argmin": _torch_extreme,
    "argmax": _torch_extreme,
}


class TorchSides(TorchFunctionMode):
    """Collects the sides that a PyTorch twin's operations take in this context."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        self.found: Sides = defaultdict(set)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the function and notes its sides."""
        name = getattr(func, "__name__", "")
        if name in IN_TORCH and (line := self._line()):
            given = [_numpy(value) for value in args]
            named = {key: _numpy(value) for key, value in (kwargs or {}).items() if key not in ("out", "inplace")}
            _note(self.found, Decision(line, name), IN_TORCH[name](*given, **named))
        return func(*args, **(kwargs or {}))

    def _line(self) -> int:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0


def _numpy(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, torch.Tensor) else value
