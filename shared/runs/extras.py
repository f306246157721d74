"""Helpers for what a run can do without: the curve, Weights & Biases, the returns that a dataset's file states."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from shared.errors import reason
from shared.runs.curves import LARGEST
from shared.runs.progress import warn

_SUFFIX = "_return_mean"


class Extra:
    """Keeps errors in an optional part from ending the run; only the first error is printed."""

    def __init__(self, words: str) -> None:
        """Stores the beginning of the warning, which says what has failed."""
        self._words, self._told = words, False

    @contextlib.contextmanager
    def spared(self) -> Iterator[None]:
        """Suppresses errors in the block; Ctrl-C and the like pass through."""
        try:
            yield
        except Exception as error:
            if not self._told:
                warn(f"{self._words} ({reason(error)}); the run goes on without")
            self._told = True


def policy_returns(attributes: Mapping[str, Any]) -> dict[str, float]:
    """The mean returns of the policies that recorded a dataset, by name, from its attributes `<name>_return_mean`.

    Values that are not finite, and names that cannot be printed, are left out with a warning.
    """
    keys = sorted(key for key in attributes if key.endswith(_SUFFIX))
    found = {key: _number(attributes[key]) for key in keys if key.isprintable()}
    if odd := [key for key in keys if found.get(key) is None]:
        values = ", ".join(f"{key!r} is {attributes[key]!r}"[:100] for key in odd)
        warn(f"left out of curve and result, as these attributes of the dataset are no numbers: {values}")
    return {key.removesuffix(_SUFFIX): number for key, number in found.items() if number is not None}


def _number(value: Any) -> float | None:
    """Converts a value to a finite number, or returns None if it is not one."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= LARGEST else None
