"""`corl-twins plot runs`: learning curves of runs with bands over seeds, and statistics of the seeds."""

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shared.commands import statistics
from shared.commands.common import Parser
from shared.commands.reporting.drawing import Look, looks, mean_curve, wrapped
from shared.commands.reporting.evaluations import REGRETS
from shared.commands.reporting.runs import Gathered, Key, Run, gather
from shared.errors import InputError
from shared.files import write_atomically
from shared.frameworks.twins import FRAMEWORKS
from shared.runs.curves import AVERAGED, ERRORS, LABELS, count_updates, drawable, mark_switch, places, png, printable
from shared.runs.progress import warn

_DASHES = {"torch": "--", "jax": "-"}
_COLUMNS = 3
# Height of a line of names below a panel, in inches
_LINE = 0.2

Panels = Mapping[tuple[str, str], Sequence[Key]]
"""The curves of each panel, by algorithm and dataset; runs with other settings are separate curves."""


def panels(gathered: Gathered) -> Panels:
    """Groups runs that are drawn together."""
    found: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for run in gathered.runs:
        curves = found[run.kind.algorithm, run.kind.dataset]
        if run.kind.key not in curves:
            curves.append(run.kind.key)
    return dict(sorted(found.items()))


def draw(gathered: Gathered) -> bytes:
    """Draws a PNG with a panel for each algorithm and dataset: the mean over seeds, with its interval for several.

    Runs with different settings make separate curves. Runs that no mean includes are drawn individually, pale and thin.
    """
    grouped = panels(gathered)
    styles = looks(run.kind.name for run in gathered.runs)
    variants = {run.kind.key: run.kind.variant for run in gathered.runs}
    columns = min(_COLUMNS, len(grouped))
    rows = -(-len(grouped) // columns)
    lines = max(sum(len(gathered.alone[key]) + (key in gathered.groups) for key in keys) for keys in grouped.values())
    size = max(4.2 * columns, 5.5), (3.0 + _LINE * (lines + 1)) * rows
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, ((algorithm, dataset), keys) in zip(axes.flat, grouped.items(), strict=False):
        for key in keys:
            _draw_curve(axis, _label(variants[key], key), gathered, key, styles[key[0]])
        runs = [run for run in gathered.runs if run.kind.key in keys]
        if any(len(gathered.groups.get(key, ())) > 1 for key in keys):
            axis.fill_between([], [], color="0.5", alpha=0.2, linewidth=0, label="95% interval of the mean over seeds")
        for switch in {run.evaluated.switch for run in runs if run.evaluated.switch is not None}:
            mark_switch(axis, switch)
        metric = next((run.evaluated.metric for run in runs if run.evaluated.metric), "")
        axis.set_title(drawable(f"{algorithm} on {dataset}"), loc="left", fontsize=10)
        axis.set(xlabel=runs[0].unit, ylabel=LABELS.get(metric, metric))
        count_updates(axis)
        if not any(run.evaluated.finite for run in runs):
            axis.set(xticks=[], yticks=[])
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(-0.1, -0.2))
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(grouped) :]:
        axis.remove()
    return png(figure)


def _label(variant: str, key: Key) -> str:
    return wrapped(f"{FRAMEWORKS[key[2]]}, {variant}").replace("$", r"\$") if variant else FRAMEWORKS[key[2]]


def _draw_curve(axis: Axes, label: str, gathered: Gathered, key: Key, look: Look) -> None:
    style: dict[str, Any] = {"color": look.colour, "linestyle": _DASHES[key[2]]}
    if runs := gathered.groups.get(key):
        steps, mean = mean_curve(runs)
        seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
        axis.plot(
            steps, mean.estimate, marker=look.marker, markersize=3, linewidth=1.2, label=f"{label}, {seeds}", **style
        )
        if len(runs) > 1:
            axis.fill_between(steps, mean.low, mean.high, color=look.colour, alpha=0.2, linewidth=0)
    for run in gathered.alone[key]:
        _draw_alone(axis, label, run, style)


def _draw_alone(axis: Axes, label: str, run: Run, style: Mapping[str, Any]) -> None:
    """Draws a run that no mean includes, with a cross at the end if it has diverged."""
    state = "diverged" if run.evaluated.diverged else "not finished" if run.result is None else "shorter"
    values = run.evaluated.finite
    name = f"{label}, seed {run.evaluated.seed}: {state}"
    marker: dict[str, Any] = (
        {"marker": "x", "markevery": [-1], "markersize": 7} if values and run.evaluated.diverged else {}
    )
    axis.plot(list(values), list(values.values()), linewidth=0.8, alpha=0.6, label=name, **marker, **style)


def table(gathered: Gathered, margin: float) -> str:
    """Statistics over seeds, as Markdown: a row for each curve, and a comparison if both frameworks are there."""
    lines = ["| runs | framework | seeds | mean [95%] | interquartile mean [95%] |", "|---|---|---|---|---|"]
    verdicts = []
    scores = {key: [run.evaluated.score() for run in runs] for key, runs in gathered.groups.items()}
    for (algorithm, dataset, framework), values in scores.items():
        name = printable(f"{algorithm} on {dataset}")
        cells = [
            statistics.bootstrapped(statistic, values, resamples=statistics.MANY_RESAMPLES)
            for statistic in (statistics.mean, statistics.interquartile_mean)
        ]
        metric = gathered.groups[algorithm, dataset, framework][0].evaluated.metric
        shown = [name, FRAMEWORKS[framework], str(len(values)), *(cell.shown(places(metric)) for cell in cells)]
        lines.append(f"| {' | '.join(shown)} |")
        other = scores.get((algorithm, dataset, "torch"))
        if framework == "jax" and other:
            verdict = _less_error(values, other) if metric in ERRORS else _verdict(values, other, margin)
            verdicts.append(f"{name}: {verdict}")
    return "\n".join([*lines, "", *verdicts])


def online_table(gathered: Gathered) -> str:
    """The gain and the cost of the online phase, as Markdown: means over seeds; empty if no run has gone online."""
    heads = ["runs", "framework", "seeds", "before online", "after online", *REGRETS.values()]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for (algorithm, dataset, framework), runs in gathered.groups.items():
        online = [run.evaluated for run in runs if run.evaluated.switch is not None]
        if online:
            scores = np.mean([run.around_the_switch() for run in online], axis=0)
            regrets = [[run.regrets[name] for run in online if name in run.regrets] for name in REGRETS]
            cells = [printable(f"{algorithm} on {dataset}"), FRAMEWORKS[framework], str(len(online))]
            cells += [f"{score:.1f}" for score in scores]
            cells += [f"{np.mean(values):.2f}" if values else "" for values in regrets]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _verdict(jax: Sequence[float], torch: Sequence[float], margin: float) -> str:
    better = statistics.bootstrapped(statistics.probability_of_improvement, jax, torch)
    shown = statistics.equivalence(jax, torch, margin)
    return f"JAX over PyTorch in {better.shown(2)} of the cases; equal within {margin:g}: {shown}"


def _less_error(jax: Sequence[float], torch: Sequence[float]) -> str:
    """Compares errors, for which smaller is better, and for which a margin in points of a score is meaningless."""
    better = statistics.bootstrapped(statistics.probability_of_improvement, torch, jax)
    return f"JAX below PyTorch in {better.shown(2)} of the cases"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `--help` explains it.

    Raises:
        InputError: The command line cannot be used.
    """
    parser = Parser(
        prog="corl-twins plot",
        description="Draws learning curves: a panel for each algorithm and dataset, PyTorch against JAX, the mean over "
        "seeds with its bootstrapped 95% interval. Runs are seeds of one experiment if all other settings agree. Runs "
        "that aren't finished or have diverged are drawn by themselves.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or a folder of runs")
    parser.add_argument("--output", type=Path, metavar="FILE", help="PNG to write (default: RUN/curves.png)")
    parser.add_argument(
        "--stats",
        action="store_true",
        help=f"print means, interquartile means, the probability of improvement and a test of equivalence, of each "
        f"run's last {AVERAGED} evaluations; if runs went online, also scores before and after, and regrets",
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=statistics.MARGIN,
        help=f"largest difference of means that counts as equal (default: {statistics.MARGIN:g})",
    )
    options = parser.parse_args(arguments)
    if not options.margin > 0:
        parser.error("--margin must be greater than 0")
    return options


def main(arguments: Sequence[str]) -> None:
    """Runs the command.

    Raises:
        InputError: The command line or the runs cannot be used.
    """
    options = parse_arguments(arguments)
    gathered = gather(options.runs)
    faults = [f"{name}: {why}" for name, why in gathered.faults.items()]
    if not gathered.runs:
        raise InputError(f"none of these runs can be drawn: {'; '.join(faults)}")
    for fault in faults:
        warn(f"left out: {fault}")
    for run, why in gathered.left_out:
        warn(f"in no mean: {run.place}: {why}")
    output = options.output or options.runs[0] / "curves.png"
    try:
        write_atomically(output, draw(gathered))
    except OSError as error:
        raise InputError(f"cannot write {output} ({error.strerror}): set --output") from error
    if options.stats and gathered.groups:
        tables = table(gathered, options.margin).rstrip(), online_table(gathered)
        print("\n\n".join(filter(None, tables)))
    print(output)
