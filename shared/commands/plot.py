"""`corl-twins plot runs`: learning curves of runs with bands over seeds, and what the seeds tell."""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shared.commands import statistics
from shared.commands.common import Parser
from shared.errors import InputError
from shared.files import write_atomically
from shared.frameworks.twins import FRAMEWORKS
from shared.runs.curves import AVERAGED, LABELS, LARGEST, drawable, mark_switch, png, printable

_FOLDER = re.compile(r"(?P<title>.+)-s(?P<seed>\d+)-(?P<framework>torch|jax)-[0-9a-f]{8}")
_COLOURS = {"torch": "C1", "jax": "C0"}
REGRETS = {"train/regret": "training regret", "eval/regret": "evaluation regret"}
"""By their names in `metrics.jsonl`."""
_COLUMNS = 3
_MOST_STEPS = 10**15


class Evaluations(NamedTuple):
    """One run's evaluations.

    Attributes:
        title: Name and dataset, equal for runs that belong together.
        framework: `torch` or `jax`.
        seed: Its seed.
        metric: `d4rl_normalized_score`, or `return_mean` where there is no such score.
        values: By the number of updates.
        switch: After how many updates it went on in its environment; None if it has not.
        regrets: The last of training and of evaluation, by name; only of tasks with a goal.
    """

    title: str
    framework: str
    seed: int
    metric: str
    values: dict[int, float]
    switch: int | None
    regrets: dict[str, float]

    def around_the_switch(self) -> tuple[float, float]:
        """The last value before the online phase, and the last of all; NaN where there is none."""
        assert self.switch is not None, "a run of one phase"
        before = max((step for step in self.values if step <= self.switch), default=-1)
        after = max((step for step in self.values if step > self.switch), default=-1)
        return self.values.get(before, np.nan), self.values.get(after, np.nan)

    def score(self) -> float:
        """What the run counts as: the mean of its last evaluations."""
        return float(np.mean([self.values[step] for step in sorted(self.values)[-AVERAGED:]]))


Panels = Mapping[str, Mapping[str, Sequence[Evaluations]]]


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders among the paths and directly inside them.

    Raises:
        InputError: A path is no run and holds none.
    """
    found = []
    for path in paths:
        runs = [folder for folder in (path.resolve(), *sorted(_subfolders(path))) if _FOLDER.fullmatch(folder.name)]
        if not runs:
            raise InputError(f"{path} is no run's folder and holds none: name a folder such as runs/")
        found += runs
    return list(dict.fromkeys(found))


def _subfolders(path: Path) -> Iterator[Path]:
    return (folder.resolve() for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else iter(())


def read_run(folder: Path) -> Evaluations | None:
    """The evaluations of a run, finished or not; None before the first.

    Raises:
        InputError: Its metrics cannot be read.
    """
    path = folder / "metrics.jsonl"
    try:
        # The last line of a run that goes on may be half written.
        lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        every = [json.loads(line) for line in lines]
        rows = [row for row in every if row.keys() & LABELS.keys()]
        if not rows:
            return None
        metric = next(name for name in LABELS if name in rows[0])
        values = {_whole(row["step"]): _finite(row[metric]) for row in rows}
        online = [_whole(row["step"] - row["online_iter"] - 1) for row in every if "online_iter" in row]
        regrets = {name: _finite(row[name]) for row in every for name in REGRETS if name in row}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} is damaged: leave out this run") from error
    name = _FOLDER.fullmatch(folder.name)
    assert name is not None, "`find_runs` lets no other name through"
    switch = online[0] if online else None
    return Evaluations(name["title"], name["framework"], int(name["seed"]), metric, values, switch, regrets)


def _whole(value: Any) -> int:
    """A number of steps that a picture can hold.

    Raises:
        ValueError: It is none.
    """
    step = int(value)
    if not 0 <= step <= _MOST_STEPS:
        raise ValueError("no run has so many steps")
    return step


def _finite(value: Any) -> float:
    """A return or score that a picture can hold.

    Raises:
        ValueError: It is none.
    """
    number = float(value)
    if not abs(number) <= LARGEST:  # nor is NaN
        raise ValueError("no run earns so much")
    return number


def panels(runs: Sequence[Evaluations]) -> Panels:
    """Runs by title, then by framework."""
    grouped: dict[str, dict[str, list[Evaluations]]] = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: (run.title, run.framework)):
        grouped[run.title][run.framework].append(run)
    return grouped


def draw(grouped: Panels) -> bytes:
    """A PNG with a panel for each title: the mean over seeds, and its interval where there are several."""
    columns = min(_COLUMNS, len(grouped))
    rows = -(-len(grouped) // columns)
    figure = Figure(figsize=(max(4.2 * columns, 5.5), 3.2 * rows), dpi=130, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, (title, frameworks) in zip(axes.flat, grouped.items(), strict=False):
        for framework, runs in frameworks.items():
            _draw_framework(axis, framework, runs)
        for switch in {run.switch for runs in frameworks.values() for run in runs if run.switch is not None}:
            mark_switch(axis, switch)
        (first, *_) = next(iter(frameworks.values()))
        axis.set_title(drawable(title), loc="left", fontsize=10)
        axis.set(xlabel="steps of training", ylabel=LABELS[first.metric])
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize="small")
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(grouped) :]:
        axis.remove()
    return png(figure)


def _draw_framework(axis: Axes, framework: str, runs: Sequence[Evaluations]) -> None:
    steps = sorted(set.intersection(*(set(run.values) for run in runs)))
    curves = np.array([[run.values[step] for step in steps] for run in runs])
    label = f"{FRAMEWORKS[framework]}, {len(runs)} seed{'s' if len(runs) > 1 else ''}"
    axis.plot(steps, curves.mean(axis=0), "o-", color=_COLOURS[framework], markersize=3, linewidth=1.2, label=label)
    if len(runs) > 1:
        intervals = [statistics.bootstrapped(statistics.mean, column) for column in curves.T]
        low, high = [i.low for i in intervals], [i.high for i in intervals]
        axis.fill_between(steps, low, high, color=_COLOURS[framework], alpha=0.2, linewidth=0)


def table(grouped: Panels, margin: float) -> str:
    """What the seeds tell, as Markdown: a row for each title and framework, and a line where both are there."""
    lines = ["| runs | framework | seeds | mean [95%] | interquartile mean [95%] |", "|---|---|---|---|---|"]
    verdicts = []
    for title, frameworks in grouped.items():
        name, scores = printable(title), {side: [run.score() for run in runs] for side, runs in frameworks.items()}
        for framework, values in scores.items():
            cells = [statistics.bootstrapped(s, values) for s in (statistics.mean, statistics.interquartile_mean)]
            shown = [name, FRAMEWORKS[framework], str(len(values)), *(cell.shown() for cell in cells)]
            lines.append(f"| {' | '.join(shown)} |")
        if len(scores) == 2:
            verdicts.append(f"{name}: {_verdict(scores['jax'], scores['torch'], margin)}")
    return "\n".join([*lines, "", *verdicts])


def online_table(grouped: Panels) -> str:
    """What the online phase changed and cost, as Markdown: means over seeds; empty if no run has gone online."""
    heads = ["runs", "framework", "seeds", "before online", "after online", *REGRETS.values()]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for title, frameworks in grouped.items():
        for framework, runs in frameworks.items():
            online = [run for run in runs if run.switch is not None]
            if online:
                scores = np.mean([run.around_the_switch() for run in online], axis=0)
                regrets = [[run.regrets[name] for run in online if name in run.regrets] for name in REGRETS]
                cells = [printable(title), FRAMEWORKS[framework], str(len(online))]
                cells += [f"{score:.1f}" for score in scores]
                cells += [f"{np.mean(values):.2f}" if values else "" for values in regrets]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _verdict(jax: Sequence[float], torch: Sequence[float], margin: float) -> str:
    better = statistics.bootstrapped(statistics.probability_of_improvement, jax, torch)
    shown = statistics.equivalence(jax, torch, margin)
    return f"JAX over PyTorch in {better.shown(2)} of the cases; equal within {margin:g}: {shown}"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; `--help` explains it.

    Raises:
        InputError: It cannot be used.
    """
    parser = Parser(
        prog="corl-twins plot",
        description="Draws learning curves: a panel for each algorithm and dataset, PyTorch against JAX, the mean over "
        "seeds with its bootstrapped 95% interval. Runs that still go on are drawn as far as they are.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or one that holds such")
    parser.add_argument("--output", type=Path, default=Path("curves.png"), help="PNG to write (default: curves.png)")
    parser.add_argument(
        "--stats",
        action="store_true",
        help=f"print means, interquartile means, the probability of improvement and a test of equivalence, of each "
        f"run's last {AVERAGED} evaluations; where runs went online, scores before and after, and regrets",
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=statistics.MARGIN,
        help=f"difference of means that counts as none (default: {statistics.MARGIN:g})",
    )
    options = parser.parse_args(arguments)
    if not options.margin > 0:
        parser.error("--margin must be greater than 0")
    return options


def main(arguments: Sequence[str]) -> None:
    """Runs the command.

    Raises:
        InputError: What it was given cannot be used.
    """
    options = parse_arguments(arguments)
    runs = [run for run in map(read_run, find_runs(options.runs)) if run is not None]
    if not runs:
        raise InputError("none of these runs has been evaluated yet: wait for its first evaluation")
    grouped = panels(runs)
    try:
        write_atomically(options.output, draw(grouped))
    except OSError as error:
        raise InputError(f"cannot write {options.output} ({error.strerror}): set --output") from error
    if options.stats:
        tables = table(grouped, options.margin).rstrip(), online_table(grouped)
        print("\n\n".join(filter(None, tables)))
    print(options.output)
