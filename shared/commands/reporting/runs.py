"""The runs that a picture or a report is about, as their folders tell, and which of them count."""

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
from shared.runs import resuming
from shared.runs.configs import read_yaml
from shared.runs.curves import LABELS, places, printable
from shared.runs.vocabulary import IDEAS, in_house

ONLINE = ", then online"
"""Behind the name of an algorithm whose runs go on in the environment."""
# What two runs of the same settings may differ in
FREE = (*resuming.FREE, "seed", "group", "project", "checkpoints_path")

Key = tuple[str, str, str]
"""Algorithm, dataset and framework: what runs share that differ in their seeds alone."""


class Kind(NamedTuple):
    """Everything that identifies a run, or planned runs.

    Attributes:
        algorithm: What it is called.
        dataset: The dataset's name, or an environment's.
        framework: `torch` or `jax`.
        settings: All settings, as text.
        variant: The settings in which it differs from others of its algorithm and dataset, in words.
    """

    algorithm: str
    dataset: str
    framework: str
    settings: Mapping[str, Any]
    variant: str = ""

    @property
    def name(self) -> str:
        """The algorithm, with its variant where there are several."""
        return f"{self.algorithm} ({self.variant})" if self.variant else self.algorithm

    @property
    def key(self) -> Key:
        """The part that it shares with runs that differ only in their seeds."""
        return self.name, self.dataset, self.framework


class Run(NamedTuple):
    """A run that has been evaluated, or has diverged before.

    Attributes:
        folder: Where it lies.
        kind: What it is of.
        evaluated: Its evaluations, its framework and its seed.
        result: What `result.json` says; None while the run goes on, or if it was cut.
    """

    folder: Path
    kind: Kind
    evaluated: Evaluations
    result: Mapping[str, Any] | None

    @property
    def place(self) -> str:
        """Its folder, in print."""
        return printable("/".join(self.folder.parts[-2:]))

    @property
    def state(self) -> str:
        """How it ended, or how far it has come; empty for one that is finished."""
        if self.evaluated.diverged:
            return f"diverged: {self.evaluated.diverged}"
        most = printable(str(self.kind.settings.get("max_timesteps", "?")))
        return "" if self.result else f"not finished: at {self.evaluated.reached:,} of {most}"


class Gathered:
    """All runs, and which of them count: those that are finished, of full length, and the only ones of their seed.

    Attributes:
        runs: Those that were evaluated or have diverged.
        faults: For each other folder, why nothing can be said of it.
        planned: The seeds that sweeps mean to make.
        begun: The seeds of which there is a run, whatever came of it.
        groups: The runs that count, by what they share.
        left_out: All others, and why they do not count.
        alone: Those of them that are no second run of a seed: pictures show them, and no mean has them in it.
        diverged: How many of them have diverged.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        faults: Mapping[str, str],
        planned: Sequence[tuple[Kind, Sequence[int]]] = (),
        unread: Sequence[tuple[Kind, int]] = (),
    ) -> None:
        """Sorts them.

        Args:
            runs: Those that were evaluated or have diverged.
            faults: For each other folder, why nothing can be said of it.
            planned: What sweeps mean to make, with its seeds.
            unread: What those of `faults` are of whose settings can be read, with its seed.
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
        """The seeds that a sweep means to make and of which there is no run."""
        lacking = {key: sorted(seeds - self.begun[key]) for key, seeds in self.planned.items()}
        return {key: seeds for key, seeds in lacking.items() if seeds}


def _place(run: Run) -> tuple[str, str, str, int]:
    return run.kind.dataset, run.kind.name, run.kind.framework, run.evaluated.seed


def _worth(run: Run) -> tuple[bool, bool, int, float, str]:
    """Of several runs of one seed the finished one counts, then the longest, then the one that wrote last."""
    written = (run.folder / "metrics.jsonl").stat().st_mtime
    return not run.state, run.result is not None, run.evaluated.reached, written, run.place


def gather(paths: Sequence[Path]) -> Gathered:
    """Reads the runs among the paths and directly inside them.

    Raises:
        InputError: A path is no run and holds none, or what a sweep means to make cannot be read.
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
    """A line for all seeds of the same settings: what they score, and how many they are."""
    lines = []
    for (algorithm, dataset, framework), runs in gathered.groups.items():
        scores, metric = [run.evaluated.score() for run in runs], runs[0].evaluated.metric
        found = (np.mean(scores), np.std(scores, ddof=1)) if len(scores) > 1 else scores
        spread = " +- ".join(rounded(*found, digits=places(metric)))
        seeds = f"{len(scores)} seed{'s' if len(scores) > 1 else ''}"
        lines.append(f"{algorithm} ({framework}) on {dataset}: {LABELS[metric]} {spread}, {seeds}")
    return lines


def kind_of(framework: str, settings: Mapping[str, Any], name: str = "?") -> Kind:
    """The identity of a run with these settings; `name` is for an algorithm whose settings have none."""
    online = ONLINE if "online_iterations" in settings else ""
    algorithm = printable(str(settings.get("name", name))) + online
    return Kind(algorithm, printable(str(settings.get("env", "?"))), framework, settings)


def _kind(folder: Path) -> Kind:
    """The identity of a run.

    Raises:
        InputError: Its settings cannot be read.
    """
    title, _, framework, _ = folder.name.rsplit("-", 3)
    # So that runs from before and after a renaming compare
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
    """The hardware of a run, as its result states it: the processor, and the GPU if that is the device.

    The frameworks call one device by several names: `cpu`, `cpu:0` and `TFRT_CPU_0`; `cuda` and `gpu:0`; `auto`.
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
    """The same, with the settings in which they differ from others of their algorithm and dataset."""
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
