"""The zoomable charts of a report: learning curves, interquartile means, performance profiles."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from bokeh.models import HoverTool, NumeralTickFormatter
from bokeh.plotting import figure

from shared.commands import statistics
from shared.commands.reporting.drawing import MARKERS, Look, looks, mean_curve, wrapped
from shared.commands.reporting.runs import Gathered, Key, Run
from shared.commands.reporting.tables import Means, Tasks, by_task, label
from shared.runs.curves import LABELS, places

# The most points of a curve on a page; longer curves are thinned evenly
_MOST_POINTS = 100
# Height of a chart, and of a line of names, in pixels
_HEIGHT, _LINE = 320, 24
# The longest name, in characters, of which two fit into a line on a phone
_HALF = 18
_DASHES = {"torch": "dashed", "jax": "solid"}


def every(gathered: Gathered, means: Means) -> dict[str, list[figure]]:
    """All charts of a report by the heading of their section; `means` are its interquartile means."""
    styles = looks(run.kind.name for run in gathered.runs)
    drawn = {"Learning curves": curves(gathered, styles)}
    if means:
        tasks = by_task(gathered.groups)
        drawn["Over all datasets"] = [interquartile_means(means, styles), profiles(tasks, styles)]
    return drawn


def _figure(title: str, x: str, y: str, **options: Any) -> figure:
    """An empty chart as wide as the page, with tools for zooming."""
    return figure(
        title=title,
        x_axis_label=x,
        y_axis_label=y,
        height=_HEIGHT,
        sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset,save",
        active_drag="box_zoom",
        **options,
    )


def curves(gathered: Gathered, styles: dict[str, Look]) -> list[figure]:
    """A chart for each dataset: mean evaluations over seeds with bootstrapped bands, by algorithm and framework.

    Runs that no mean includes are drawn individually, pale and thin.
    """
    by_dataset: dict[str, list[Key]] = defaultdict(list)
    for key in dict.fromkeys(run.kind.key for run in gathered.runs):
        by_dataset[key[1]].append(key)
    found = []
    for dataset, keys in sorted(by_dataset.items()):
        runs = [run for key in keys for run in (*gathered.groups.get(key, ()), *gathered.alone[key])]
        metric = next((run.evaluated.metric for run in runs if run.evaluated.metric), "")
        unit = " or ".join(sorted({run.unit for run in runs}))
        chart = _figure(dataset, unit, LABELS.get(metric, metric))
        for key in keys:
            _draw(chart, key, gathered.groups.get(key, ()), gathered.alone[key], styles[key[0]])
        chart.add_tools(
            HoverTool(tooltips=[("", "$name"), (unit, "@x{0,0}"), ("mean", f"@y{{0.{'0' * places(metric)}}}")])
        )
        # As short as possible without two equal ticks
        chart.xaxis.formatter = NumeralTickFormatter(format="0.[000000]a")
        _names_below(chart)
        found.append(chart)
    return found


def _draw(chart: figure, key: Key, runs: Sequence[Run], alone: Sequence[Run], look: Look) -> None:
    algorithm, _, framework = key
    name = label(algorithm, framework)
    style: dict[str, Any] = {"color": look.colour, "line_dash": _DASHES[framework]}
    if runs:
        named: dict[str, Any] = {"legend_label": wrapped(name), "name": name}
        steps, mean = mean_curve(runs, _MOST_POINTS)
        if len(runs) > 1:
            chart.varea(steps, mean.low, mean.high, fill_alpha=0.15, color=look.colour, **named)
        chart.line(steps, mean.estimate, line_width=2, **style, **named)
        _mark(chart, steps, mean.estimate, look, named)
    for run in alone:
        state = "diverged" if run.evaluated.diverged else "not finished" if run.result is None else "shorter"
        name = f"{label(algorithm, framework)}, {state}"
        named = {"legend_label": wrapped(name), "name": f"{name}, seed {run.evaluated.seed}"}
        values = run.evaluated.finite
        steps = np.array(list(values), np.int64)
        chart.line(steps, list(values.values()), line_width=1, line_alpha=0.6, **style, **named)
        if values and run.evaluated.diverged:
            chart.scatter(steps[-1:], [values[steps[-1]]], size=9, marker="x", color=look.colour, **named)


def _mark(chart: figure, x: np.ndarray, y: np.ndarray, look: Look, named: dict[str, Any]) -> None:
    """Draws points only for algorithms that share a colour: the first marker means no points."""
    if look.marker != next(iter(MARKERS)):
        chart.scatter(x, y, size=6, marker=MARKERS[look.marker], color=look.colour, **named)


def interquartile_means(means: Means, styles: dict[str, Look]) -> figure:
    """The interquartile mean of each algorithm, with its interval."""
    chart = _figure("Interquartile means", "normalised score", "")
    chart.yaxis.visible = chart.ygrid.visible = False
    for place, ((algorithm, framework), mean) in enumerate(means.items()):
        name, look = label(algorithm, framework), styles[algorithm]
        named: dict[str, Any] = {"legend_label": wrapped(name), "name": name}
        if np.isfinite(mean.low):
            dash = _DASHES[framework]
            chart.segment(
                [mean.low],
                [-place],
                [mean.high],
                [-place],
                line_width=5,
                line_alpha=0.5,
                line_dash=dash,
                color=look.colour,
                **named,
            )
        chart.scatter([mean.estimate], [-place], size=9, marker=MARKERS[look.marker], color=look.colour, **named)
    chart.add_tools(HoverTool(tooltips=[("", "$name"), ("score", "$x{0.0}")]))
    _names_below(chart)
    return chart


def profiles(tasks: Tasks, styles: dict[str, Look]) -> figure:
    """The share of runs above each score, by algorithm."""
    scores = np.concatenate([scores for of in tasks.values() for scores in of.values()])
    thresholds = np.linspace(min(0.0, scores.min()), max(100.0, scores.max()), 101)
    chart = _figure("Performance profiles", "normalised score", "share of runs above it")
    profile = partial(statistics.performance_profile, thresholds=thresholds)
    for (algorithm, framework), of in tasks.items():
        found, look = statistics.stratified(profile, list(of.values())), styles[algorithm]
        named: dict[str, Any] = {"legend_label": wrapped(label(algorithm, framework))}
        if np.isfinite(found.low).all():
            chart.varea(thresholds, found.low, found.high, fill_alpha=0.12, color=look.colour, **named)
        chart.line(thresholds, found.estimate, line_width=2, line_dash=_DASHES[framework], color=look.colour, **named)
        _mark(chart, thresholds[::10], found.estimate[::10], look, named)
    chart.vspan(100.0, line_dash="dotted", line_color="grey")
    _names_below(chart)
    return chart


def _names_below(chart: figure) -> None:
    """Puts the names below the chart, in two columns if they fit on a phone; clicking a name hides its curve."""
    (legend,) = chart.legend
    names = [str(item.label.value) for item in legend.items]  # type: ignore[union-attr]
    legend.ncols = 2 if max(map(len, names)) <= _HALF else 1
    lines = sum(1 + name.count("\n") for name in names)
    chart.height = _HEIGHT + _LINE * -(-lines // legend.ncols)
    legend.click_policy = "hide"
    legend.label_text_font_size = "9pt"
    chart.add_layout(legend, "below")
