"""A run's own checkpoints: where they lie, and which of them are kept."""

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_KEPT = 2
# What a checkpoint that cannot be used any more is called
_ASIDE = ".aside"

READERS: dict[str, Callable[[str], Mapping[str, Any]]] = {}
"""The readers of checkpoints, by the file's suffix: each framework enters its own when it is imported."""


class Checkpoints:
    """The files `step_<n>` of one folder: the last two are kept, and the one that was evaluated best."""

    def __init__(self, folder: Path, suffix: str) -> None:
        """Makes nothing; `suffix` is `.pt` or `.msgpack`."""
        self.folder = folder
        self._suffix = suffix

    def path(self, step: int) -> Path:
        """The path of the checkpoint after `step` updates."""
        return self.folder / f"step_{step}{self._suffix}"

    def steps(self) -> list[int]:
        """Of those there are, in rising order."""
        pattern = re.compile(rf"step_(\d+){re.escape(self._suffix)}")
        found = (pattern.fullmatch(path.name) for path in self.folder.glob("step_*"))
        return sorted(int(match[1]) for match in found if match)

    def prune(self, scores: Mapping[int, float], lower_is_better: bool = False) -> None:
        """Removes all but the last two and the best.

        Args:
            scores: How those that were evaluated did, by their step; NaN is no score.
            lower_is_better: Whether the least is best, as of an error.
        """
        steps = self.steps()
        kept = set(steps[-_KEPT:])
        if evaluated := [step for step in steps if math.isfinite(scores.get(step, math.nan))]:
            kept.add((min if lower_is_better else max)(evaluated, key=scores.__getitem__))
        for step in set(steps) - kept:
            # One too many does no harm.
            with contextlib.suppress(OSError):
                self.path(step).unlink()

    def tidy(self, last: int) -> None:
        """Removes half-written files, and renames files from after step `last`, which a resumed run writes again."""
        for partial in self.folder.glob("*.partial"):
            partial.unlink()
        for step in self.steps():
            if step > last:
                path = self.path(step)
                path.rename(path.with_name(path.name + _ASIDE))
