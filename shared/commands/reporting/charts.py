"""The charts of a report, which can be zoomed: learning curves, interquartile means, performance profiles."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from bokeh.models import HoverTool, NumeralTickFormatter
from bokeh.palettes import Category10_10
from bokeh.plotting import figure

from shared.commands import statistics
from shared.commands.reporting.runs import Key, Run
from shared.commands.reporting.tables import Tasks, label
from shared.runs.curves import LABELS

# Points of a curve that a page holds; a longer one is thinned evenly.
_MOST_POINTS = 100
# Of a chart, and of a line of names, in pixels
_HEIGHT, _LINE = 320, 26
_DASHES = {"torch": "dashed", "jax": "solid"}


def _figure(title: str, x: str, y: str, names: int, **options: Any) -> figure:
    """An empty chart as wide as the page, with the tools that zoom, and room for names below it in two columns."""
    return figure(
        title=title,
        x_axis_label=x,
        y_axis_label=y,
        height=_HEIGHT + _LINE * -(-names // 2),
        sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset,save",
        active_drag="box_zoom",
        **options,
    )


def curves(groups: Mapping[Key, Sequence[Run]]) -> list[figure]:
    """A chart for each dataset: mean evaluations over seeds with the bootstrap's band, by algorithm and framework."""
    by_dataset: dict[str, list[Key]] = defaultdict(list)
    for key in groups:
        by_dataset[key[1]].append(key)
    colours = _colours(algorithm for algorithm, _, _ in groups)
    found = []
    for dataset, keys in sorted(by_dataset.items()):
        metric = groups[keys[0]][0].evaluated.metric
        chart = _figure(dataset, "updates", LABELS.get(metric, metric), len(keys))
        for key in keys:
            _draw(chart, groups[key], label(key[0], key[2]), colours[key[0]], _DASHES[key[2]])
        chart.add_tools(HoverTool(tooltips=[("", "$name"), ("updates", "@x{0,0}"), ("mean", "@y{0.0}")]))
        chart.xaxis.formatter = NumeralTickFormatter(format="0a")
        _names_below(chart)
        found.append(chart)
    return found


def _colours(algorithms: Iterable[str]) -> dict[str, str]:
    """A colour for each algorithm, the same in every chart."""
    return {name: Category10_10[number % 10] for number, name in enumerate(sorted(set(algorithms)))}


def _draw(chart: figure, runs: Sequence[Run], name: str, colour: str, dash: str) -> None:
    steps = np.array(sorted(set.intersection(*(set(run.evaluated.values) for run in runs))))
    if not len(steps):
        return
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_POINTS)).astype(int))]
    values = np.array([[run.evaluated.values[step] for step in steps] for run in runs])
    style: dict[str, Any] = {"color": colour, "legend_label": name, "name": name}
    if len(runs) > 1:
        bounds = statistics.stratified(lambda seeds: np.mean(seeds[0], axis=-2), [values])
        chart.varea(steps, bounds.low, bounds.high, fill_alpha=0.15, **style)
    chart.line(steps, values.mean(axis=0), line_width=2, line_dash=dash, **style)


def interquartile_means(tasks: Tasks) -> figure:
    """The interquartile mean of each algorithm with its interval."""
    names = [label(*column) for column in tasks][::-1]
    found = [statistics.stratified(statistics.interquartile_mean_of_tasks, list(of.values())) for of in tasks.values()]
    estimates, lows, highs = zip(*found[::-1], strict=True)
    chart = _figure("Interquartile means", "normalised score", "", 2 * len(names), y_range=names)
    chart.hbar(names, left=lows, right=highs, height=0.5, alpha=0.35)
    chart.scatter(estimates, names, size=8)
    return chart


def profiles(tasks: Tasks) -> figure:
    """The share of runs above each score, by algorithm."""
    every = np.concatenate([scores for of in tasks.values() for scores in of.values()])
    thresholds = np.linspace(min(0.0, every.min()), max(100.0, every.max()), 101)
    chart = _figure("Performance profiles", "normalised score", "share of runs above it", len(tasks))
    colours = _colours(algorithm for algorithm, _ in tasks)
    profile = partial(statistics.performance_profile, thresholds=thresholds)
    for (algorithm, framework), of in tasks.items():
        found = statistics.stratified(profile, list(of.values()))
        style: dict[str, Any] = {"color": colours[algorithm], "legend_label": label(algorithm, framework)}
        chart.varea(thresholds, found.low, found.high, fill_alpha=0.12, **style)
        chart.line(thresholds, found.estimate, line_width=2, line_dash=_DASHES[framework], **style)
    chart.vspan(100.0, line_dash="dotted", line_color="grey")
    _names_below(chart)
    return chart


def _names_below(chart: figure) -> None:
    """Puts the names below the chart in two columns, which a phone has room for; a click hides a curve."""
    chart.legend.ncols = 2
    chart.legend.click_policy = "hide"
    chart.legend.label_text_font_size = "9pt"
    chart.add_layout(chart.legend[0], "below")
