"""The tables of a report: scores, averages, comparisons of twins, costs, and missing runs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

from shared.commands import statistics
from shared.commands.reporting import published
from shared.commands.reporting.evaluations import REGRETS
from shared.commands.reporting.runs import FREE, ONLINE, Gathered, Key, Run
from shared.envs.scores import rounded
from shared.frameworks.twins import FRAMEWORKS
from shared.names import OGBENCH
from shared.runs.curves import ERRORS, LABELS, places

# Metrics with a common range, from a random policy to an expert or from 0 to 100, which may be averaged over datasets
NORMALISED = ("d4rl_normalized_score", "normalized_return", "normalized_return_not_d4rl", "success_percent")
_SUITES = {
    "locomotion": ("halfcheetah", "hopper", "walker2d", "ant"),
    "Maze2D": ("maze2d",),
    "AntMaze": ("antmaze",),
    "Adroit": ("pen", "door", "hammer", "relocate"),
    "Kitchen": ("kitchen",),
}
# The most algorithms to compare with each other; a larger table is unreadable.
_MOST_COMPARED = 20


class Table(NamedTuple):
    """A table.

    Attributes:
        title: The heading.
        note: An explanation that readers need.
        head: The names of the columns.
        rows: The cells, as text.
    """

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def shown(self, form: str) -> str:
        """Formats the table in one of tabulate's formats, such as `html`, `github` or `latex_booktabs`."""
        return tabulate(self.rows, self.head, tablefmt=form, disable_numparse=True)


def label(algorithm: str, framework: str) -> str:
    """The name of a column or a curve."""
    return f"{algorithm}, {FRAMEWORKS[framework]}"


def suite(dataset: str) -> str:
    """The suite of a dataset, by its name; bundled datasets have separate suites, and unknown families count as suites.

    The tasks of one OGBench dataset are a suite.
    """
    if dataset.startswith(OGBENCH):
        return f"OGBench {dataset.removeprefix(OGBENCH).partition('-singletask')[0]}"
    family = dataset.rpartition("/")[2].partition("-")[0].lower()
    found = next((name for name, families in _SUITES.items() if family in families), family)
    return f"bundled {found}" if dataset.startswith("mini/") else found


def with_deviation(scores: Sequence[float], digits: int = 1, diverged: int = 0) -> str:
    """Mean and deviation over seeds, their number, and the number that have diverged; empty without seeds."""
    if not scores:
        return f"diverged ({diverged})" if diverged else ""
    found = (np.mean(scores), np.std(scores, ddof=1)) if len(scores) > 1 else scores
    others = f", {diverged} diverged" if diverged else ""
    spread = " ± ".join(rounded(*found, digits=digits))
    return f"{spread} ({len(scores) if len(scores) > 1 else '1 seed'}{others})"


Groups = Mapping[Key, Sequence[Run]]


def columns_of(groups: Iterable[Key]) -> list[tuple[str, str]]:
    """Algorithms with their frameworks, in order."""
    return sorted({(algorithm, framework) for algorithm, _, framework in groups})


def scores(gathered: Gathered) -> Table:
    """Mean and deviation by dataset and algorithm, next to published ones, and a row of averages for each suite."""
    groups, missing = gathered.groups, gathered.missing()
    known = {**{run.kind.key: run.evaluated.metric for run in gathered.runs}, **dict.fromkeys(missing, "")}
    columns, datasets = columns_of(known), sorted({dataset for _, dataset, _ in known})
    titles = {published.name_of(algorithm) for algorithm, _ in columns}
    theirs = [
        (source, name)
        for source in published.SOURCES
        for name in source.scores
        if name in titles and any(source.score(name, dataset) for dataset in datasets)
    ]

    def cell(key: Key) -> str:
        own = [run.evaluated.score() for run in groups.get(key, ())]
        state = "not finished" if gathered.begun[key] else "missing" if key in missing else ""
        return with_deviation(own, places(known[key]) if key in known else 1, gathered.diverged[key]) or state

    rows = []
    for dataset in datasets:
        metric = next((metric for key, metric in known.items() if key[1] == dataset and metric), "")
        own = [cell((algorithm, dataset, framework)) for algorithm, framework in columns]
        unit = "" if metric in ("d4rl_normalized_score", "") else f" ({LABELS.get(metric, metric)})"
        rows.append([dataset + unit, *own, *(source.score(name, dataset) for source, name in theirs)])
    rows += _averages(groups, columns, len(theirs))
    note = (
        "A run's score is the mean of its last three evaluations. A cell has the mean over seeds, the sample's "
        "deviation, and the number of seeds. Runs that are not finished or have diverged are left out of it. An "
        "average over a suite is the mean of these means, if no dataset is missing."
    )
    note = " ".join([note, *dict.fromkeys(source.note for source, _ in theirs)])
    head = ["dataset", *(label(*column) for column in columns), *(f"{name}, {source.whose}" for source, name in theirs)]
    return Table("Scores", note, head, rows)


def _averages(groups: Groups, columns: Sequence[tuple[str, str]], others: int) -> list[list[str]]:
    """A row of averages for each suite with several datasets."""
    suites: dict[str, list[str]] = defaultdict(list)
    for (_, dataset, _), runs in groups.items():
        if runs[0].evaluated.metric in NORMALISED and dataset not in suites[suite(dataset)]:
            suites[suite(dataset)].append(dataset)
    rows = []
    for name, members in suites.items():
        if len(members) < 2:
            continue
        cells = []
        for algorithm, framework in columns:
            means = [
                np.mean([run.evaluated.score() for run in groups[key]])
                for dataset in members
                if (key := (algorithm, dataset, framework)) in groups
            ]
            cells.append(f"{np.mean(means):.1f}" if len(means) == len(members) else "")
        rows.append([f"average of {name}", *cells, *[""] * others])
    return rows


Tasks = Mapping[tuple[str, str], Mapping[str, np.ndarray]]
"""Normalised scores (n,) by algorithm and framework, then by dataset."""


def by_task(groups: Groups) -> Tasks:
    """The scores that may be averaged over datasets."""
    found: dict[tuple[str, str], dict[str, np.ndarray]] = defaultdict(dict)
    for (algorithm, dataset, framework), runs in groups.items():
        if runs[0].evaluated.metric in NORMALISED:
            found[algorithm, framework][dataset] = np.array([run.evaluated.score() for run in runs])
    return {column: found[column] for column in sorted(found)}


def interquartile_means(tasks: Tasks) -> dict[tuple[str, str], statistics.Interval]:
    """The interquartile mean of each algorithm over its datasets."""
    return {
        column: statistics.stratified(
            statistics.interquartile_mean_of_tasks, list(of.values()), resamples=statistics.MANY_RESAMPLES
        )
        for column, of in tasks.items()
    }


def aggregates(tasks: Tasks, means: Mapping[tuple[str, str], statistics.Interval]) -> Table:
    """The interquartile mean over all runs of each algorithm."""
    rows = [
        [label(*column), means[column].shown(), str(len(of)), ", ".join(str(len(scores)) for scores in of.values())]
        for column, of in tasks.items()
    ]
    note = (
        "The mean of the middle half of all runs (Agarwal et al. 2021), with 95% of the bootstrap, stratified by "
        "dataset. Each dataset weighs the same, however many seeds it has. If one has a single seed, there is no "
        "interval. You can compare means only if the algorithms learned from the same datasets."
    )
    head = ["algorithm", "interquartile mean [95%]", "datasets", "seeds of each"]
    return Table("Interquartile means", note, head, rows)


def improvements(tasks: Tasks) -> Table:
    """The probability that the row's algorithm scores above the column's, on the datasets that both have."""
    columns = list(tasks)[:_MOST_COMPARED]
    rows = [[label(*row), *(_improvement(tasks[row], tasks[column]) for column in columns)] for row in columns]
    note = (
        "The probability that a run of the row's algorithm scores above one of the column's, averaged over datasets "
        "that both have. Ties count one half. The interval is 95% of the bootstrap, stratified by dataset."
    )
    head = ["", *(label(*column) for column in columns)]
    return Table("Probability of improvement", note, head, rows if len(columns) > 1 else [])


def _improvement(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> str:
    common = [dataset for dataset in first if dataset in second]
    if first is second or not common:
        return ""
    pair = ([scores_of[dataset] for dataset in common] for scores_of in (first, second))
    return statistics.stratified(statistics.improvement_on_tasks, *pair).shown(2)


def twins(groups: Groups, margin: float) -> Table:
    """Compares both frameworks, for algorithms and datasets that both have run."""
    rows = []
    for (algorithm, dataset, framework), runs in groups.items():
        others = groups.get((algorithm, dataset, "torch"))
        if framework != "jax" or not others:
            continue
        jax, torch = ([run.evaluated.score() for run in side] for side in (runs, others))
        shown, metric = statistics.shown_margin(jax, torch), runs[0].evaluated.metric
        digits = places(metric)
        rows.append(
            [
                dataset,
                algorithm,
                f"{np.mean(jax) - np.mean(torch):+.{digits}f}",
                # A margin in points of a score is meaningless for an error.
                "" if metric in ERRORS else statistics.equivalence(jax, torch, margin),
                "too few seeds" if np.isnan(shown) else f"{shown:.{digits}f}",
                _speedup(runs, others),
            ]
        )
    note = (
        f"Two one-sided Welch tests check whether the means are equal within {margin:g}. The margin shown is the "
        "smallest one that these seeds would pass. Speed is compared only on equal hardware, with medians over seeds."
    )
    head = [
        "dataset",
        "algorithm",
        "JAX - PyTorch",
        f"equal within {margin:g}",
        "margin shown",
        "updates/s, JAX over PyTorch",
    ]
    return Table("PyTorch against JAX", note, head, rows)


def _speedup(ours: Sequence[Run], theirs: Sequence[Run]) -> str:
    results = [[run.result for run in side if run.result] for side in (ours, theirs)]
    if not all(results) or len({found["hardware"] for side in results for found in side}) > 1:
        return "other hardware"
    jax, torch = (np.median([found["updates_per_second"] for found in side]) for side in results)
    return f"{jax / torch:.2f}" if torch else ""


def phases(groups: Groups) -> Table:
    """The gain and the cost of the online phase, with published results after ours."""
    rows, notes = [], []
    for (algorithm, dataset, framework), runs in groups.items():
        online = [run.evaluated for run in runs if run.evaluated.switch is not None]
        if online:
            # A run that has just gone online has not been evaluated there yet.
            scores = np.transpose([run.around_the_switch() for run in online])
            cells = [with_deviation(values[np.isfinite(values)].tolist()) for values in scores]
            cells += [with_deviation([run.regrets[n] for run in online if n in run.regrets], 2) for n in REGRETS]
            row = [dataset, label(algorithm, framework), *cells]
            title = published.name_of(algorithm.removesuffix(ONLINE))
            if source := next((each for each in published.PHASES if each.shown(title, dataset)), None):
                row += source.shown(title, dataset)
                notes.append(source.note)
            rows.append(row)
    head = ["dataset", "algorithm", "before", "after", *REGRETS.values()]
    note = (
        "The last evaluation of each phase. A regret is the mean of 1 - success over the episodes so far, of training "
        "or of evaluation, and only tasks with a goal have one."
    )
    if notes:
        head += [f"{name}, published" for name in ("before", "after", "training regret")]
        note = " ".join([note, *dict.fromkeys(notes)])
    return Table("Offline, then online", note, head, [row + [""] * (len(head) - len(row)) for row in rows])


def costs(groups: Groups) -> Table:
    """Hours and updates per second of finished runs."""
    rows = []
    for (algorithm, dataset, framework), runs in groups.items():
        results = [run.result for run in runs if run.result]
        hours = wall_hours([(run.evaluated.seed, run.result) for run in runs if run.result])
        speed = np.median([found["updates_per_second"] for found in results])
        hardware = ", ".join(sorted({found["hardware"] for found in results}))
        at_once = sorted({found["seeds_at_once"] for found in results})
        cells = [f"{np.mean(hours):.2f}", f"{sum(hours):.2f}", ", ".join(map(str, at_once))]
        rows.append([dataset, label(algorithm, framework), *cells, f"{speed:.1f}", hardware])
    head = ["dataset", "algorithm", "hours a process", "hours in all", "seeds at once", "updates/s", "hardware"]
    note = (
        "Finished runs only, in wall-clock time. Seeds trained together in one process are counted once. Updates per "
        "second are for one seed, the median over seeds."
    )
    return Table("Cost", note, head, rows)


def wall_hours(results: Sequence[tuple[int, Mapping[str, Any]]]) -> list[float]:
    """The hours of each process that trained some of these runs, which are given with their seeds, in this order.

    Seeds that train together are consecutive, and each of them counts the seconds from its own beginning. Some of them
    may be missing.
    """
    first: dict[int, int] = {}  # the first seed of the last process, by the number of its seeds
    hours: dict[tuple[int, int], float] = defaultdict(float)
    for seed, found in results:
        at_once = found["seeds_at_once"]
        if at_once not in first or seed >= first[at_once] + at_once:
            first[at_once] = seed
        process = at_once, first[at_once]
        hours[process] = max(hours[process], found["seconds"] / 3600)
    return list(hours.values())


def settings(groups: Groups) -> Table:
    """The settings that differ between the datasets of one algorithm."""
    by_algorithm: dict[str, dict[str, Mapping[str, object]]] = defaultdict(dict)
    for (algorithm, dataset, _), runs in groups.items():
        by_algorithm[algorithm].setdefault(dataset, runs[0].kind.settings)
    rows = []
    for algorithm, found in by_algorithm.items():
        names = sorted(set().union(*found.values()) - {"env", *FREE})
        for name in names:
            values = {dataset: str(given.get(name, "")) for dataset, given in found.items()}
            if len(set(values.values())) > 1:
                rows.append([algorithm, name, "; ".join(f"{dataset}: {value}" for dataset, value in values.items())])
    return Table(
        "Settings that differ", "Between the datasets of one algorithm.", ["algorithm", "setting", "values"], rows
    )


def gaps(gathered: Gathered) -> Table:
    """Runs that do not count, folders that cannot be read, and planned seeds without a run."""
    rows = [[run.place, why] for run, why in gathered.left_out]
    rows += [[name, why] for name, why in gathered.faults.items()]
    for (algorithm, dataset, framework), seeds in gathered.missing().items():
        numbers = ", ".join(map(str, seeds))
        rows.append([f"{label(algorithm, framework)} on {dataset}", f"planned, no run of seed {numbers}"])
    note = "No mean or interval of this page has any of these in it. A run is missing where a sweep has planned it."
    return Table("Left out and missing", note, ["run", "why"], rows)


Means = Mapping[tuple[str, str], statistics.Interval]


def every(gathered: Gathered, margin: float, means: Means) -> list[Table]:
    """All non-empty tables of a report; `means` are its interquartile means."""
    groups = gathered.groups
    tasks = by_task(groups)
    makers: list[Callable[[], Table]] = [
        lambda: scores(gathered),
        lambda: aggregates(tasks, means),
        lambda: improvements(tasks),
        lambda: twins(groups, margin),
        lambda: phases(groups),
        lambda: costs(groups),
        lambda: settings(groups),
        lambda: gaps(gathered),
    ]
    return [table for make in makers if (table := make()).rows]
