"""The facts about a run in its checkpoint, of either framework, and the type that each must have.

Files from outside may have the right format and the wrong content. It is checked before anything is built on it.

Whoever reads a checkpoint imports this module then: a new run need not wait for pydantic, a sixth of a second.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from shared.errors import InputError

# Of a state or an action; a file that says more would only exhaust the memory
_LARGEST = 100_000
_Size = Annotated[int, Field(gt=0, le=_LARGEST)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _row(values: Any) -> np.ndarray:
    """A row of finite numbers; CORL's transformer has it as a matrix of one row."""
    row = np.asarray(values)
    if row.dtype.kind not in "fiu" or not row.ndim or row.size != row.shape[-1] or not np.isfinite(row).all():
        raise ValueError("must be a row of finite numbers")
    return row


def _positive(values: Any) -> np.ndarray:
    row = _row(values)
    if not (row > 0).all():
        raise ValueError("must be greater than 0")
    return row


class _Progress(BaseModel):
    """How far a run had come."""

    model_config = ConfigDict(strict=True)

    metrics_size: NonNegativeInt
    updates: NonNegativeInt
    seconds: _Seconds
    evaluating: _Seconds


class _Environment(BaseModel):
    """The sizes that networks are built for: the scoring environment, S, A and the bound of every action component.

    Of images, channels, height and width take the place of S.

    And the returns that count as 0 and 100, where the run is scored between two.
    """

    model_config = ConfigDict(strict=True)

    id: str
    state_dim: _Size | Annotated[list[_Size], Field(min_length=3, max_length=3)]
    action_dim: _Size
    max_action: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ref_min_score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    ref_max_score: Annotated[float, Field(allow_inf_nan=False)] | None = None


class _Facts(BaseModel):
    """All are optional, since files of CORL's and of older versions lack some."""

    model_config = ConfigDict(strict=True)

    algorithm: str = ""
    total_it: NonNegativeInt = 0
    step: NonNegativeInt = 0
    settings: dict[str, Any] = {}
    dataset: dict[str, Any] = {}
    environment: _Environment | None = None
    versions: dict[str, str] = {}
    progress: _Progress | None = None
    state_mean: Annotated[Any, AfterValidator(_row)] = None
    state_std: Annotated[Any, AfterValidator(_positive)] = None
    action_mean: Annotated[Any, AfterValidator(_row)] = None
    action_std: Annotated[Any, AfterValidator(_positive)] = None
    action_low: Annotated[Any, AfterValidator(_row)] = None
    action_high: Annotated[Any, AfterValidator(_row)] = None


def check_facts(content: Mapping[str, Any], path: str) -> None:
    """Checks every fact that a checkpoint states; what it does not state is not asked for.

    Args:
        content: What the file holds, by key.
        path: Its path, for the message.

    Raises:
        InputError: A fact is of another kind than a run writes, or a number is not finite.
    """
    stated = {name: content[name] for name in _Facts.model_fields if name in content}
    try:
        _Facts(**stated)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise InputError(f"checkpoint {path} cannot be used ({name}: {first['msg']}): take another one") from None


def stored_rows(saved: Any, capacity: int, width: int, path: str) -> tuple[np.ndarray, int]:
    """The rows (n, W) of a ring as a checkpoint holds it, and where the next one goes.

    Args:
        saved: What the file holds of it.
        capacity: Of the ring.
        width: W.
        path: The file's, for the message.

    Raises:
        InputError: There is none, it is of another size, or a number is not finite.
    """
    try:
        rows, pointer = np.asarray(saved["rows"]), saved["pointer"]
        fits = rows.dtype.kind == "f" and rows.ndim == 2 and rows.shape[1] == width and 0 < len(rows) <= capacity
        fits = fits and type(pointer) is int and 0 <= pointer < capacity and bool(np.isfinite(rows).all())
    except (TypeError, KeyError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            f"checkpoint {path} holds no roll-outs of {width} numbers a row, {capacity} rows at most: begin a new run"
        )
    return rows, pointer
