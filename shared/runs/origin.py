"""The units of states and actions that a run takes over from the checkpoint that it starts from."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shared.envs.boxes import ActionBox, ActionUnits
from shared.errors import InputError
from shared.runs import resuming
from shared.runs.checkpoints import READERS, Checkpoints
from shared.runs.progress import say
from shared.runs.settings import RecordConfig

Statistics = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Maps observations (N, S) to the offset to subtract and the scale to divide by, (S,) each."""


class Origin:
    """A checkpoint whose networks a run continues to train. Its units override the run's settings and data.

    Nothing is taken over from files without units, such as CORL's.
    """

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        """Stores the entries of a checkpoint that concern units."""
        self._path = path
        self._mean, self._std = (_row(content, key) for key in ("state_mean", "state_std"))
        self._action_mean, self._action_std = (_row(content, key) for key in ("action_mean", "action_std"))
        self._low, self._high = (_row(content, key) for key in ("action_low", "action_high"))
        self._environment = content.get("environment")

    def statistics(self, own: Statistics) -> Statistics:
        """Replaces the run's own statistics of states with the checkpoint's."""

        def taken_over(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            mean, std = own(observations)
            if self._mean is None or self._std is None or not self._mean.shape == self._std.shape == mean.shape:
                return mean, std
            if not _close((self._mean, self._std), (mean, std)):
                say(f"states are normalised by the statistics in {self._path}, not by this run's own")
            return self._mean, self._std

        return taken_over

    def units(self, own: ActionUnits, size: int) -> ActionUnits:
        """Replaces the run's own units of actions, of `size` components, with the checkpoint's."""
        if self._environment is None:
            return own
        mean = np.zeros(size, np.float32) if self._action_mean is None else self._action_mean
        std = np.ones(size, np.float32) if self._action_std is None else self._action_std
        if not mean.shape == std.shape == (size,):
            return own
        bound = self._environment["max_action"]
        if bound == own.bound and _close((mean, std), (own.mean, own.std)):
            return own
        say(f"actions are in the units of {self._path}, not in this run's own")
        box = own.box if self._low is None or self._high is None else ActionBox(self._low, self._high)
        return ActionUnits(mean, std, bound, box)


def origin_of(config: RecordConfig) -> Origin | None:
    """The checkpoint that a run starts from: its own last one if resumed, else `load_model`'s; None without either.

    Files that cannot be read are skipped here, because the code that loads the networks reports them.
    """
    for path in _candidates(config):
        if (reader := READERS.get(path.suffix)) is not None:
            try:
                return Origin(path, reader(str(path)))
            except InputError:
                continue
    return None


def _candidates(config: RecordConfig) -> Iterator[Path]:
    """Yields the checkpoints that a run may start from, the most likely first."""
    for folder in _resumed(config):
        yield from _checkpoints(folder)
    if path := config.load_model:
        yield Path(path)


def _checkpoints(folder: Path) -> Iterator[Path]:
    """Yields a run's own checkpoints, the last one first."""
    for suffix in READERS:
        checkpoints = Checkpoints(folder / "checkpoints", suffix)
        yield from map(checkpoints.path, reversed(checkpoints.steps()))


def _resumed(config: RecordConfig) -> list[Path]:
    """The folders of runs that a run may continue, the latest first."""
    named = config.resume
    if named != resuming.AUTO:
        return [Path(named)] if named else []
    alike = (folder for framework in ("torch", "jax") for folder in resuming.alike(config, framework))
    unfinished = (folder for folder in alike if not (folder / "result.json").exists())
    found = [folder for folder in unfinished if resuming.has_settings(config, _algorithm(folder), folder)]
    return sorted(found, key=lambda folder: folder.stat().st_mtime, reverse=True)


def _algorithm(folder: Path) -> str:
    """The algorithm of a run, from its last readable checkpoint; empty if there is none."""
    for path in _checkpoints(folder):
        with contextlib.suppress(InputError):
            return str(READERS[path.suffix](str(path)).get("algorithm", ""))
    return ""


def _row(content: Mapping[str, Any], key: str) -> np.ndarray | None:
    """A row of numbers; CORL's transformer stores it as a matrix with one row."""
    return np.asarray(content[key]).flatten() if key in content else None


def _close(ours: tuple[np.ndarray, np.ndarray], theirs: tuple[np.ndarray, np.ndarray]) -> bool:
    return all(np.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(ours, theirs, strict=True))
