"""A run's extras: the curve, Weights & Biases, and a dataset file's remarks on its policies."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from shared.errors import reason
from shared.runs.curves import LARGEST
from shared.runs.progress import warn

_SUFFIX = "_return_mean"


class Extra:
    """Keeps an extra's errors from ending the run: the first one is printed in one line, later ones are not."""

    def __init__(self, words: str) -> None:
        """Nothing has failed yet; `words` tell what has, if anything does."""
        self._words, self._told = words, False

    @contextlib.contextmanager
    def spared(self) -> Iterator[None]:
        """An error in the block ends only the block; Ctrl-C and the like pass through."""
        try:
            yield
        except Exception as error:
            if not self._told:
                warn(f"{self._words} ({reason(error)}); the run goes on without")
            self._told = True


def policy_returns(attributes: Mapping[str, Any]) -> dict[str, float]:
    """The mean returns of the policies that a dataset came from, by name, of the attributes `<name>_return_mean`.

    What is no finite number, or has a name that cannot be printed, is left out, and that is said.
    """
    keys = sorted(key for key in attributes if key.endswith(_SUFFIX))
    found = {key: _number(attributes[key]) for key in keys if key.isprintable()}
    if odd := [key for key in keys if found.get(key) is None]:
        values = ", ".join(f"{key!r} is {attributes[key]!r}"[:100] for key in odd)
        warn(f"left out of curve and result, as these attributes of the dataset are no numbers: {values}")
    return {key.removesuffix(_SUFFIX): number for key, number in found.items() if number is not None}


def _number(value: Any) -> float | None:
    """A finite number as such; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= LARGEST else None
