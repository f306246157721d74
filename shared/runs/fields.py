"""The fields of a configuration: their types, their bounds and the words for both."""

import dataclasses
import math
import typing
from collections.abc import Callable
from typing import Any

from shared.errors import InputError

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", tuple: "a list of numbers"}


def _restricted(default: Any, allows: Callable[[Any], bool], words: str) -> Any:
    """A dataclass field whose metadata contain a test of the value, and the words that describe allowed values."""
    return dataclasses.field(default=default, metadata={"allows": allows, "words": words})


def _finite(default: float | None) -> str:
    return "finite and " if isinstance(default, float) else ""


def positive(default: float | None) -> Any:
    """A field for finite numbers greater than 0, such as a learning rate."""
    return _restricted(default, lambda value: 0 < value < math.inf, f"{_finite(default)}greater than 0")


def bounded(default: float | None, low: float, high: float | None = None) -> Any:
    """A field for finite numbers from `low` to `high`, both included; without `high`, any number of at least `low`."""
    if high is None:
        return _restricted(default, lambda value: low <= value < math.inf, f"{_finite(default)}at least {low}")
    return _restricted(default, lambda value: low <= value <= high, f"between {low} and {high}")


def multiple(default: int, of: int) -> Any:
    """A field for whole numbers greater than 0 that `of` divides."""
    return _restricted(default, lambda value: value > 0 and value % of == 0, f"a multiple of {of}")


def unbounded(default: float | None) -> Any:
    """A field for any finite number."""
    return _restricted(default, math.isfinite, "finite")


def numbers(default: tuple[float, ...] | None, low: float = -math.inf, high: float = math.inf) -> Any:
    """A field for one or more finite numbers from `low` up to `high`."""
    limits = "" if math.isinf(high) else f" between {low} and {high}"
    return _restricted(
        default,
        lambda values: len(values) > 0 and all(low <= value <= high and math.isfinite(value) for value in values),
        f"one or more finite numbers{limits}",
    )


def bounds() -> Any:
    """A field for any number of finite numbers, or none; a single number counts as a list of one."""
    field = _restricted((), lambda values: all(map(math.isfinite, values)), "finite numbers")
    return dataclasses.field(default=(), metadata={**field.metadata, "alone": True})


def widths(*default: int) -> Any:
    """A field for the widths of one or more layers."""
    return _restricted(
        default, lambda values: len(values) > 0 and min(values) >= 1, "one or more numbers of at least 1"
    )


def choice(default: str, *others: str) -> Any:
    """A field for one of several words, the default being the first."""
    words = (default, *others)
    return _restricted(default, words.__contains__, f"one of {', '.join(words)}")


def later(field: Any) -> Any:
    """Marks a field that runs of earlier versions lack; its default must reproduce what those runs did."""
    return dataclasses.field(default=field.default, metadata={**field.metadata, "later": True})


def check(config: Any) -> None:
    """Checks the type and the bounds of every field, whether the config was parsed or built in Python.

    Raises:
        InputError: A value has the wrong type, is not a number, or is outside its field's bounds.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not has_type(field.type, value):
            raise InputError(f"{field.name} must be {in_words(field.type)}, not {value!r}")
        if value is not None and "allows" in field.metadata and not field.metadata["allows"](value):
            raise InputError(f"{field.name} must be {field.metadata['words']}, not {value!r}")


def is_optional(kind: Any) -> bool:
    """Whether a field of this type may be null."""
    return type(None) in typing.get_args(kind)


def base_type(kind: Any) -> type:
    """Returns `str` for `str | None`, and any other type unchanged."""
    return typing.get_args(kind)[0] if is_optional(kind) else kind


def scalar_or_tuple(kind: Any) -> type:
    """Returns `tuple` for `tuple[float, ...]`, optional or not, and the base type of any other type."""
    return tuple if typing.get_origin(base_type(kind)) is tuple else base_type(kind)


def entry_types(kind: Any) -> tuple[Any, ...]:
    """The entry types of a tuple type, which may be optional: `float` and `...` for `tuple[float, ...]`."""
    return typing.get_args(base_type(kind))


def in_words(kind: Any) -> str:
    """Describes a field's type for a message, such as `a whole number or null`."""
    words = _KINDS[scalar_or_tuple(kind)]
    if scalar_or_tuple(kind) is tuple and ... not in entry_types(kind):
        words = f"a list of {len(entry_types(kind))} numbers"
    elif scalar_or_tuple(kind) is tuple and int in entry_types(kind):
        words = "a list of whole numbers"
    return words + (" or null" if is_optional(kind) else "")


def has_type(kind: Any, value: Any) -> bool:
    """Whether a value has a field's type; whole numbers count as numbers, and NaN does not."""
    if value is None:
        return is_optional(kind)
    if scalar_or_tuple(kind) is tuple:
        if type(value) is not tuple:
            return False
        first, *others = entry_types(kind)
        fits = others == [...] or len(value) == 1 + len(others)
        return fits and all(has_type(first, entry) for entry in value)
    if base_type(kind) is float:
        return type(value) in (int, float) and not math.isnan(value)
    return type(value) is base_type(kind)
