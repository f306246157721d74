"""The runs of a picture or a report, read from their folders, and the choice of those that count."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shared.commands.reporting.evaluations import Evaluations, find_runs, read_run
from shared.commands.reporting.planned import read_planned
from shared.envs.scores import rounded
from shared.errors import InputError
from shared.names import is_known
from shared.runs import resuming
from shared.runs.configs import read_yaml
from shared.runs.curves import LABELS, places, printable
from shared.runs.vocabulary import IDEAS, in_house

ONLINE = ", then online"
"""Suffix of the name of an algorithm whose runs continue online."""
# Settings that may differ between two runs of the same kind
FREE = (*resuming.FREE, "seed", "group", "project", "checkpoints_path")

Key = tuple[str, str, str]
"""Algorithm, dataset and framework, which are the same for runs that only differ in their seeds."""


class Kind(NamedTuple):
    """Everything that identifies a run, or planned runs.

    Attributes:
        algorithm: The name of the algorithm.
        dataset: The name of the dataset or environment.
        framework: `torch` or `jax`.
        settings: All settings, as text.
        variant: A description of the settings that differ from other runs of its algorithm and dataset.
    """

    algorithm: str
    dataset: str
    framework: str
    settings: Mapping[str, Any]
    variant: str = ""

    @property
    def name(self) -> str:
        """The algorithm, with its variant if there are several."""
        return f"{self.algorithm} ({self.variant})" if self.variant else self.algorithm

    @property
    def key(self) -> Key:
        """The part that is the same for runs that only differ in their seeds."""
        return self.name, self.dataset, self.framework


class Run(NamedTuple):
    """A run that has been evaluated, or has diverged before its first evaluation.

    Attributes:
        folder: The path of its folder.
        kind: Its identity.
        evaluated: Its evaluations, its framework and its seed.
        result: Entries of `result.json`; None if the run is unfinished.
    """

    folder: Path
    kind: Kind
    evaluated: Evaluations
    result: Mapping[str, Any] | None

    @property
    def unit(self) -> str:
        """The unit in which its evaluations are numbered; the name of its data tells where it has learned."""
        if self.evaluated.metric == "steps_followed":
            return "epochs"
        return "updates" if is_known(self.kind.dataset) else "environment steps"

    @property
    def place(self) -> str:
        """Its folder, for printing."""
        return printable("/".join(self.folder.parts[-2:]))

    @property
    def state(self) -> str:
        """How it ended, or how far it has come; empty for a finished run."""
        if self.evaluated.diverged:
            return f"diverged: {self.evaluated.diverged}"
        most = printable(str(self.kind.settings.get("max_timesteps", "?")))
        return "" if self.result else f"not finished: at {self.evaluated.reached:,} of {most}"


class Gathered:
    """All runs, and those that count: finished, of full length, and the only one of their seed.

    Attributes:
        runs: The runs that were evaluated or have diverged.
        faults: For each other folder, the reason why it has no evaluations.
        planned: The seeds that sweeps plan.
        begun: The seeds that have a run, whatever its outcome.
        groups: The runs that count, by their key.
        left_out: All other runs, and why they do not count.
        alone: Runs in `left_out`, except for second runs of a seed; pictures draw them individually.
        diverged: The number of these that have diverged.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        faults: Mapping[str, str],
        planned: Sequence[tuple[Kind, Sequence[int]]] = (),
        unread: Sequence[tuple[Kind, int]] = (),
    ) -> None:
        """Sorts the runs.

        Args:
            runs: The runs that were evaluated or have diverged.
            faults: For each other folder, the reason why it has no evaluations.
            planned: The kinds of runs that sweeps plan, with their seeds.
            unread: The kinds of runs in `faults` whose settings can be read, with their seeds.
        """
        kinds = [run.kind for run in runs] + [kind for kind, _ in planned] + [kind for kind, _ in unread]
        told_apart = iter(_told_apart(kinds))
        self.runs = sorted((run._replace(kind=next(told_apart)) for run in runs), key=_place)
        self.faults = faults
        self.planned, self.begun = defaultdict[Key, set[int]](set), defaultdict[Key, set[int]](set)
        for _, seeds in planned:
            self.planned[next(told_apart).key].update(seeds)
        for _, seed in unread:
            self.begun[next(told_apart).key].add(seed)
        for run in self.runs:
            self.begun[run.kind.key].add(run.evaluated.seed)
        self.groups: dict[Key, list[Run]] = {}
        self.left_out: list[tuple[Run, str]] = []
        self.alone: dict[Key, list[Run]] = defaultdict(list)
        self.diverged: Counter[Key] = Counter()
        self._sort()

    def _sort(self) -> None:
        by_seed: dict[Key, dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
        for run in self.runs:
            by_seed[run.kind.key][run.evaluated.seed].append(run)
        for key, seeds in by_seed.items():
            whole = []
            for several in seeds.values():
                taken = max(several, key=_worth)
                self.left_out += [(run, f"its seed counts once: {taken.place}") for run in several if run is not taken]
                self.diverged[key] += bool(taken.evaluated.diverged)
                if taken.state:
                    self._leave_out(taken, taken.state)
                else:
                    whole.append(taken)
            longest = max((run.evaluated.reached for run in whole), default=0)
            for run in whole:
                if (reached := run.evaluated.reached) < longest:
                    self._leave_out(run, f"ends at {reached:,}, others of its kind at {longest:,}")
                else:
                    self.groups.setdefault(key, []).append(run)

    def _leave_out(self, run: Run, why: str) -> None:
        self.left_out.append((run, why))
        self.alone[run.kind.key].append(run)

    def missing(self) -> dict[Key, list[int]]:
        """The seeds that a sweep plans and that have no run."""
        lacking = {key: sorted(seeds - self.begun[key]) for key, seeds in self.planned.items()}
        return {key: seeds for key, seeds in lacking.items() if seeds}


def _place(run: Run) -> tuple[str, str, str, int]:
    return run.kind.dataset, run.kind.name, run.kind.framework, run.evaluated.seed


def _worth(run: Run) -> tuple[bool, bool, int, float, str]:
    """A sort key for runs of one seed: finished runs count first, then longer runs, then the last one written."""
    written = (run.folder / "metrics.jsonl").stat().st_mtime
    return not run.state, run.result is not None, run.evaluated.reached, written, run.place


def gather(paths: Sequence[Path]) -> Gathered:
    """Reads the runs among the paths and directly inside them.

    Raises:
        InputError: A path is not a run and contains none, or a sweep's plan cannot be read.
    """
    runs: list[Run] = []
    faults: dict[str, str] = {}
    unread: list[tuple[Kind, int]] = []
    for folder in find_runs(paths):
        kind = None
        try:
            kind = _kind(folder)
            evaluated = read_run(folder)
            if evaluated is not None:
                runs.append(Run(folder, kind, evaluated, _result(folder / "result.json")))
                continue
            why = "has not been evaluated yet: wait for its first evaluation"
        except InputError as error:
            why = str(error)
        faults[printable(folder.name)] = why
        if kind is not None:
            unread.append((kind, int(folder.name.rsplit("-", 3)[1].removeprefix("s"))))
    planned = [
        (kind_of(one.framework, one.settings), one.seeds) for path in dict.fromkeys(paths) for one in read_planned(path)
    ]
    return Gathered(runs, faults, planned, unread)


def outcome_lines(gathered: Gathered) -> list[str]:
    """A line for each group of seeds: their score and their number."""
    lines = []
    for (algorithm, dataset, framework), runs in gathered.groups.items():
        scores, metric = [run.evaluated.score() for run in runs], runs[0].evaluated.metric
        found = (np.mean(scores), np.std(scores, ddof=1)) if len(scores) > 1 else scores
        spread = " +- ".join(rounded(*found, digits=places(metric)))
        seeds = f"{len(scores)} seed{'s' if len(scores) > 1 else ''}"
        lines.append(f"{algorithm} ({framework}) on {dataset}: {LABELS[metric]} {spread}, {seeds}")
    return lines


def kind_of(framework: str, settings: Mapping[str, Any], name: str = "?") -> Kind:
    """The identity of a run with these settings; `name` is the algorithm's name if the settings have none."""
    online = ONLINE if "online_iterations" in settings else ""
    algorithm = printable(str(settings.get("name", name))) + online
    return Kind(algorithm, printable(str(settings.get("env", "?"))), framework, settings)


def _kind(folder: Path) -> Kind:
    """The identity of a run.

    Raises:
        InputError: Its settings cannot be read.
    """
    title, _, framework, _ = folder.name.rsplit("-", 3)
    # Renames settings, so that runs from before and after a renaming can be compared
    settings = in_house(read_yaml(folder / "config.yaml"), [idea.name for idea in IDEAS], "")
    return kind_of(framework, settings, title)


def _result(path: Path) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
        return {
            "seconds": float(content["seconds"]["total"]),
            "seeds_at_once": int(content.get("seeds_at_once", 1)),
            "updates_per_second": float(content["updates_per_second"]),
            "hardware": hardware_of(content["hardware"]),
        }
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
        raise InputError(f"{path} is damaged: leave out this run") from error


_DEVICE = re.compile(r"(?:TFRT_)?([a-z]+)(?:[:_](\d+))?", re.IGNORECASE)


def hardware_of(stated: Mapping[str, Any]) -> str:
    """The hardware in a run's result: the processor, and the GPU if the run used one.

    The frameworks have several names for a device: `cpu`, `cpu:0` and `TFRT_CPU_0`; `cuda` and `gpu:0`; `auto`.
    """
    gpus = list(stated.get("gpus") or [])
    found = _DEVICE.fullmatch(str(stated["device"]))
    device, number = (found[1].lower(), int(found[2] or 0)) if found else (str(stated["device"]), 0)
    if device == "auto":
        device = "cuda" if gpus else "cpu"
    cores = [f"{stated['cores']} cores"] if "cores" in stated else []
    processor = [str(stated["cpu"]), *cores]
    if device in ("cuda", "gpu"):
        return printable(", ".join([str(gpus[number]) if number < len(gpus) else "a GPU", *processor]))
    return printable(", ".join(processor if device == "cpu" else [device, *processor]))


def _told_apart(kinds: Sequence[Kind]) -> list[Kind]:
    """The same kinds, with the settings in which they differ from others of their algorithm and dataset."""
    alike: dict[tuple[str, str], list[Kind]] = defaultdict(list)
    for kind in kinds:
        alike[kind.algorithm, kind.dataset].append(kind)
    varied: dict[str, set[str]] = defaultdict(set)
    for (algorithm, _), group in alike.items():
        names = set().union(*(kind.settings for kind in group)) - set(FREE)
        varied[algorithm] |= {name for name in names if len({str(kind.settings.get(name)) for kind in group}) > 1}

    def named(kind: Kind) -> Kind:
        shown = [f"{name}={kind.settings[name]}" for name in sorted(varied[kind.algorithm]) if name in kind.settings]
        return kind._replace(variant=printable(", ".join(shown)))

    return [named(kind) for kind in kinds]
