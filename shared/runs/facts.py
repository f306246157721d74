"""The facts about a run that a checkpoint of either framework states, and the type that each must have.

Files from elsewhere may have the right format and the wrong content, so it is checked before anything uses it.

Import this module only when a checkpoint is read, because pydantic would delay the start of a new run by 0.17 s.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from shared.errors import InputError

# Largest size of a state or an action; a file that states more would only exhaust the memory
_LARGEST = 100_000
_Size = Annotated[int, Field(gt=0, le=_LARGEST)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _row(values: Any) -> np.ndarray:
    """A row of finite numbers; CORL's transformer stores it as a matrix with one row."""
    row = np.asarray(values)
    if row.dtype.kind not in "fiu" or not row.ndim or row.size != row.shape[-1] or not np.isfinite(row).all():
        raise ValueError("must be a row of finite numbers")
    return row


def _table(values: Any) -> np.ndarray:
    table = np.asarray(values)
    if table.dtype.kind != "f" or table.ndim != 2 or not np.isfinite(table).all():
        raise ValueError("must be a table of finite numbers")
    return table


def _positive(values: Any) -> np.ndarray:
    row = _row(values)
    if not (row > 0).all():
        raise ValueError("must be greater than 0")
    return row


class _Progress(BaseModel):
    """How far a run has come."""

    model_config = ConfigDict(strict=True)

    metrics_size: NonNegativeInt
    updates: NonNegativeInt
    seconds: _Seconds
    evaluating: _Seconds


class _Environment(BaseModel):
    """The scoring environment, and the sizes that networks are built for: S, A and the bound of every action component.

    For images, channels, height and width replace S. The reference scores, if the run is scored between two returns,
    are the returns that count as 0 and 100.
    """

    model_config = ConfigDict(strict=True)

    id: str
    state_dim: _Size | Annotated[list[_Size], Field(min_length=3, max_length=3)]
    action_dim: _Size
    max_action: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ref_min_score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    ref_max_score: Annotated[float, Field(allow_inf_nan=False)] | None = None


class _Facts(BaseModel):
    """All facts are optional, because CORL's files and files of older versions lack some."""

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
    queue: Annotated[Any, AfterValidator(_table)] = None


def check_facts(content: Mapping[str, Any], path: str) -> None:
    """Checks every fact that a checkpoint states; missing facts are accepted.

    Args:
        content: The contents of the file, by key.
        path: The path of the file, for the message.

    Raises:
        InputError: A fact has a type that no run writes, or a number is not finite.
    """
    stated = {name: content[name] for name in _Facts.model_fields if name in content}
    try:
        _Facts(**stated)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise InputError(f"checkpoint {path} cannot be used ({name}: {first['msg']}): take another one") from None


def stored_rows(saved: Any, capacity: int, width: int, path: str) -> tuple[np.ndarray, int]:
    """Returns the rows (n, W) of a ring buffer stored in a checkpoint, and the position of the next row.

    Args:
        saved: The file's entry for the ring buffer.
        capacity: The capacity of the ring buffer.
        width: W.
        path: The path of the file, for the message.

    Raises:
        InputError: The entry is missing or has another size, or a number is not finite.
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
