"""A run's own checkpoints: their paths, and the choice of those that are kept."""

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_KEPT = 2
# Suffix added to a checkpoint that is no longer usable
_ASIDE = ".aside"

READERS: dict[str, Callable[[str], Mapping[str, Any]]] = {}
"""The readers of checkpoints, by file suffix; each framework registers its own when it is imported."""


class Checkpoints:
    """The checkpoints `step_<n>` in one folder, of which the last two and the best are kept."""

    def __init__(self, folder: Path, suffix: str) -> None:
        """Stores the folder and the suffix, `.pt` or `.msgpack`; creates no files."""
        self.folder = folder
        self._suffix = suffix

    def path(self, step: int) -> Path:
        """The path of the checkpoint after `step` updates."""
        return self.folder / f"step_{step}{self._suffix}"

    def steps(self) -> list[int]:
        """The steps of all checkpoints in the folder, in ascending order."""
        pattern = re.compile(rf"step_(\d+){re.escape(self._suffix)}")
        found = (pattern.fullmatch(path.name) for path in self.folder.glob("step_*"))
        return sorted(int(match[1]) for match in found if match)

    def prune(self, scores: Mapping[int, float], lower_is_better: bool = False) -> None:
        """Removes all but the last two and the best.

        Args:
            scores: Scores of the evaluated checkpoints, by step; NaN counts as no score.
            lower_is_better: Whether the lowest score is the best, as for an error.
        """
        steps = self.steps()
        kept = set(steps[-_KEPT:])
        if evaluated := [step for step in steps if math.isfinite(scores.get(step, math.nan))]:
            kept.add((min if lower_is_better else max)(evaluated, key=scores.__getitem__))
        for step in set(steps) - kept:
            # A checkpoint too many does no harm.
            with contextlib.suppress(OSError):
                self.path(step).unlink()

    def tidy(self, last: int) -> None:
        """Removes partial files, and renames checkpoints after step `last`, because a resumed run writes them again."""
        for partial in self.folder.glob("*.partial"):
            partial.unlink()
        for step in self.steps():
            if step > last:
                path = self.path(step)
                path.rename(path.with_name(path.name + _ASIDE))
