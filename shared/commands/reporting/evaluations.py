"""The evaluations of runs, read from their folders."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shared.errors import InputError
from shared.runs.curves import AVERAGED, LABELS, LARGEST, printable
from shared.runs.metrics import DIVERGED

_FOLDER = re.compile(r"(?P<title>.+)-s(?P<seed>\d+)-(?P<framework>torch|jax)-[0-9a-f]{8}")
REGRETS = {"train/regret": "training regret", "eval/regret": "evaluation regret"}
"""The regrets by their keys in `metrics.jsonl`."""
_MOST_STEPS = 10**15


class Evaluations(NamedTuple):
    """One run's evaluations.

    Attributes:
        title: Name and dataset, the same for runs that belong together.
        framework: `torch` or `jax`.
        seed: The seed of the run.
        metric: `d4rl_normalized_score`, or another key of `LABELS`.
        values: The evaluations by the number of updates; NaN if an evaluation was not finite.
        switch: Number of updates before the online phase; None for a run that has not begun one.
        regrets: The last training and evaluation regrets, by name; only for tasks with a goal.
        diverged: A description of the first value that was not finite, with its step; empty if all were finite.
    """

    title: str
    framework: str
    seed: int
    metric: str
    values: dict[int, float]
    switch: int | None
    regrets: dict[str, float]
    diverged: str = ""

    @property
    def reached(self) -> int:
        """Number of updates before the last evaluation; 0 before the first one."""
        return max(self.values, default=0)

    @property
    def finite(self) -> dict[int, float]:
        """The values that can be drawn, in ascending order of steps."""
        return {step: value for step, value in sorted(self.values.items()) if np.isfinite(value)}

    def around_the_switch(self) -> tuple[float, float]:
        """The last values of the offline phase and of the online phase; NaN if there is none."""
        assert self.switch is not None, "a run of one phase"
        before = max((step for step in self.values if step <= self.switch), default=-1)
        after = max((step for step in self.values if step > self.switch), default=-1)
        return self.values.get(before, np.nan), self.values.get(after, np.nan)

    def score(self) -> float:
        """The run's score: the mean of its last evaluations."""
        return float(np.mean([self.values[step] for step in sorted(self.values)[-AVERAGED:]]))


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Finds the run folders among the paths and directly inside them.

    Raises:
        InputError: A path is not a run and contains none.
    """
    found = []
    for path in paths:
        runs = [folder for folder in (path.resolve(), *sorted(_subfolders(path))) if _FOLDER.fullmatch(folder.name)]
        if not runs:
            around = next((folder for folder in path.parents if _FOLDER.fullmatch(folder.name)), None)
            if around:
                raise InputError(f"{path} is a part of a run: name the run's folder, {around}")
            if not path.exists():
                raise InputError(f"there is nothing at {path}: name a folder such as runs/")
            raise InputError(f"{path} is no run's folder and holds none: name a folder such as runs/")
        found += runs
    return list(dict.fromkeys(found))


def _subfolders(path: Path) -> Iterator[Path]:
    return (folder.resolve() for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else iter(())


def read_run(folder: Path) -> Evaluations | None:
    """Reads the evaluations of a run, finished or not; returns None before the first one, unless the run diverged.

    Raises:
        InputError: Its metrics cannot be read.
    """
    path = folder / "metrics.jsonl"
    try:
        # The last line of a running process may be incomplete.
        lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        every = [json.loads(line) for line in lines]
        rows = [row for row in every if row.keys() & LABELS.keys()]
        fatal = [row for row in every if DIVERGED in row]
        if not rows and not fatal:
            return None
        metric = next((name for row in rows[:1] for name in LABELS if name in row), "")
        values = {_whole(row["step"]): _finite_or_nan(row[metric]) for row in rows}
        online = [_whole(row["step"] - row["online_iter"] - 1) for row in every if "online_iter" in row]
        regrets = {name: _finite(row[name]) for row in every for name in REGRETS if name in row}
        diverged = f"{printable(str(fatal[0][DIVERGED]))} at {_whole(fatal[0]['step']):,}" if fatal else ""
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError) as error:
        raise InputError(f"{path} is damaged: leave out this run") from error
    name = _FOLDER.fullmatch(folder.name)
    assert name is not None, "`find_runs` lets no other name through"
    switch = online[0] if online else None
    seed = int(name["seed"])
    return Evaluations(name["title"], name["framework"], seed, metric, values, switch, regrets, diverged)


def _whole(value: Any) -> int:
    """Converts a number of steps, which must be small enough to draw.

    Raises:
        ValueError: It is not.
    """
    step = int(value)
    if not 0 <= step <= _MOST_STEPS:
        raise ValueError("no run has so many steps")
    return step


def _finite(value: Any) -> float:
    """Converts a return or score, which must be small enough to draw.

    Raises:
        ValueError: It is not.
    """
    number = float(value)
    if not abs(number) <= LARGEST:  # NaN fails this comparison too
        raise ValueError("no run earns so much")
    return number


def _finite_or_nan(value: Any) -> float:
    """Like `_finite`, but with NaN if the run wrote null for a value that was not finite."""
    return float("nan") if value is None else _finite(value)
