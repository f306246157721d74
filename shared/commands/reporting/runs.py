"""The runs that a report is about, as their folders tell."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shared.commands.plot import Evaluations, find_runs, read_run
from shared.errors import InputError
from shared.runs import resuming
from shared.runs.configs import read_yaml
from shared.runs.curves import printable
from shared.runs.vocabulary import IDEAS, in_house

ONLINE = ", then online"
"""Behind the name of an algorithm whose runs go on in the environment."""
# What two runs of the same settings may differ in
FREE = (*resuming.FREE, "seed", "group", "project", "checkpoints_path")


class Run(NamedTuple):
    """A run that has been evaluated.

    Attributes:
        folder: Where it lies.
        algorithm: What it is called; settings follow that runs of its name differ in.
        dataset: The dataset's name, or an environment's.
        evaluated: Its evaluations, its framework and its seed.
        settings: All settings, as text.
        result: What `result.json` says; None while the run goes on, or if it was cut.
    """

    folder: Path
    algorithm: str
    dataset: str
    evaluated: Evaluations
    settings: Mapping[str, Any]
    result: Mapping[str, Any] | None

    @property
    def progress(self) -> str:
        """How far it has come."""
        reached = max(self.evaluated.values)
        return "finished" if self.result else f"at {reached:,} of {self.settings.get('max_timesteps', '?')}"


Key = tuple[str, str, str]
"""Algorithm, dataset and framework: what runs share that differ in their seeds alone."""


class Gathered(NamedTuple):
    """All runs, and those that cannot be counted.

    Attributes:
        runs: Evaluated ones.
        faults: For each other folder, why nothing can be said of it.
    """

    runs: list[Run]
    faults: dict[str, str]

    def groups(self) -> dict[Key, list[Run]]:
        """Runs that differ in their seeds alone, in the order of their names."""
        found: dict[Key, list[Run]] = defaultdict(list)
        for run in sorted(self.runs, key=_place):
            found[run.algorithm, run.dataset, run.evaluated.framework].append(run)
        return found


def _place(run: Run) -> tuple[str, str, str, int]:
    return run.dataset, run.algorithm, run.evaluated.framework, run.evaluated.seed


def gather(paths: Sequence[Path]) -> Gathered:
    """Reads the runs among the paths and directly inside them.

    Raises:
        InputError: A path is no run and holds none.
    """
    runs, faults = [], {}
    for folder in find_runs(paths):
        try:
            run = _read(folder)
        except InputError as error:
            faults[printable(folder.name)] = str(error)
            continue
        if run is None:
            faults[printable(folder.name)] = "has not been evaluated yet"
        else:
            runs.append(run)
    return Gathered(_told_apart(runs), faults)


def _read(folder: Path) -> Run | None:
    """A run; None before its first evaluation.

    Raises:
        InputError: One of its files is damaged.
    """
    evaluated = read_run(folder)
    if evaluated is None:
        return None
    # So that runs from before and after a renaming compare
    settings = in_house(read_yaml(folder / "config.yaml"), [idea.name for idea in IDEAS], "")
    online = evaluated.switch is not None or "online_iterations" in settings
    return Run(
        folder,
        printable(str(settings.get("name", evaluated.title))) + (ONLINE if online else ""),
        printable(str(settings.get("env", "?"))),
        evaluated,
        settings,
        _result(folder / "result.json"),
    )


def _result(path: Path) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
        return {
            "hours": float(content["seconds"]["total"]) / 3600,
            "updates_per_second": float(content["updates_per_second"]),
            "hardware": printable(f"{content['hardware']['cpu']}, {content['hardware']['device']}"),
        }
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: leave out this run") from error


def _told_apart(runs: Sequence[Run]) -> list[Run]:
    """Runs whose algorithm's name says in which settings they differ from others of its name and dataset."""
    alike: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        alike[run.algorithm, run.dataset].append(run)
    varied: dict[str, set[str]] = defaultdict(set)
    for (algorithm, _), group in alike.items():
        names = set().union(*(run.settings for run in group)) - set(FREE)
        varied[algorithm] |= {name for name in names if len({str(run.settings.get(name)) for run in group}) > 1}

    def named(run: Run) -> Run:
        shown = [f"{name}={run.settings[name]}" for name in sorted(varied[run.algorithm]) if name in run.settings]
        return run._replace(algorithm=printable(f"{run.algorithm} ({', '.join(shown)})")) if shown else run

    return [named(run) for run in runs]
