"""Draws results files as charts: rungs as bars, the gain from many seeds at once, learning curves, growing costs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from benchmarks.growth import AXES, along, share_of_peak
from benchmarks.results import best, sides
from benchmarks.rungs import EAGER, RUNGS, SHIPPED
from benchmarks.starts import STARTS, start_of
from shared.frameworks.twins import FRAMEWORKS
from shared.runs.curves import LABELS, mark_switch, svg

# The width in inches that a phone can show without making the words too small
_WIDTH = 4.6
_COLUMNS = 2
# These colours, and the grey of all words, are visible on light and on dark backgrounds.
_COLOURS = {"PyTorch": "#ee4c2c", "JAX": "#8c7ae0"}
_GREY = "#808080"
# Stands in for a rung that a file does not have, which is not drawn
_UNKNOWN = {"share_of_matmul_peak": float("nan")}


def staircases(summary: dict[str, Any]) -> str:
    """A results file as an SVG: each rung's best block relative to PyTorch eager, and its share of the peak."""
    algorithms = summary["algorithms"]
    rungs = [rung for rung in RUNGS if any(rung in found["rungs"] for found in algorithms.values())]
    rows = -(-len(algorithms) // _COLUMNS)
    with _both_themes():
        figure = Figure(figsize=(_WIDTH, (0.19 * len(rungs) + 0.5) * rows + 0.3), layout="constrained")
        axes = figure.subplots(rows, _COLUMNS, sharey=True, squeeze=False)
        for axis, (name, found) in zip(axes.flat, algorithms.items(), strict=False):
            _staircase(axis, name, found, rungs)
        for axis in axes.flat[len(algorithms) :]:
            axis.remove()
        figure.supxlabel(f"updates per second over {EAGER}", fontsize=9)
        return svg(figure, "chart")


def over_best(summary: dict[str, Any]) -> str:
    """A results file as an SVG: the JAX scan's updates per second relative to PyTorch's best rung, if known."""
    found = {name: sides(summary, name).over for name in summary["algorithms"]}
    ratios = dict(sorted(((name, over) for name, over in found.items() if over), key=itemgetter(1), reverse=True))
    with _both_themes():
        figure = Figure(figsize=(_WIDTH, 0.2 * len(ratios) + 0.6), layout="constrained")
        axis = figure.subplots()
        colours = [_COLOURS["JAX" if over > 1.0 else "PyTorch"] for over in ratios.values()]
        bars = axis.barh(list(ratios), list(ratios.values()), 0.75, color=colours)
        axis.bar_label(bars, [f"{over:.2f}" for over in ratios.values()], padding=2)
        axis.invert_yaxis()
        axis.margins(y=0.01)
        axis.axvline(1.0, color=_GREY, linewidth=0.8, linestyle=":")
        axis.set_xlabel("updates per second over PyTorch's best variant")
        axis.spines[["top", "right"]].set_visible(False)
        return svg(figure, "chart")


def many_seeds(summary: dict[str, Any]) -> dict[int, str]:
    """The rungs of a results file that advance several seeds at once, by the number of seeds, fewest first."""
    timed = {rung for found in summary["algorithms"].values() for rung in found["rungs"]}
    return {RUNGS[rung].seeds: rung for rung in RUNGS if rung in timed and RUNGS[rung].seeds > 1}


def seeds(summary: dict[str, Any]) -> str:
    """A results file as an SVG: updates per second of all seeds together, relative to one seed, by number of seeds.

    It shows each algorithm for which the largest number of seeds was timed.
    """
    many = many_seeds(summary)
    shown = {name: found for name, found in summary["algorithms"].items() if many[max(many)] in found["rungs"]}
    with _both_themes():
        figure = Figure(figsize=(_WIDTH, 0.225 * len(many) * len(shown) + 0.9), layout="constrained")
        axis = figure.subplots()
        for number, (count, rung) in enumerate(many.items()):
            rows = {row: found for row, found in enumerate(shown.values()) if rung in found["rungs"]}
            places = [row + (number - (len(many) - 1) / 2) * 0.38 for row in rows]
            lengths = [best(found, rung) / best(found, SHIPPED) for found in rows.values()]
            face = _COLOURS["JAX"] if number == len(many) - 1 else "none"
            bars = axis.barh(places, lengths, 0.34, color=face, edgecolor=_COLOURS["JAX"], label=f"{count} seeds")
            axis.bar_label(bars, [f"{length:.2f}" for length in lengths], padding=2)
        axis.set_yticks(range(len(shown)), shown)
        axis.invert_yaxis()
        axis.margins(y=0.01)
        axis.axvline(1.0, color=_GREY, linewidth=0.8, linestyle=":")
        axis.set_xlabel("updates per second of all seeds over one seed's")
        axis.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper right", ncols=len(many), frameon=False)
        return svg(figure, "chart")


def learning(summary: dict[str, Any]) -> str:
    """A results file as an SVG: each seed's scores over a run, their mean, and the scores of the data's policies."""
    with _both_themes():
        figure = Figure(figsize=(_WIDTH, 3.4), layout="constrained")
        axis = figure.subplots()
        for framework, name in FRAMEWORKS.items():
            found, colour = summary["frameworks"][framework], _COLOURS[name]
            axis.plot(found["steps"], np.transpose(found["curves"]), color=colour, linewidth=0.6, alpha=0.6)
            mean, label = np.mean(found["curves"], axis=0), f"{name}, mean of {len(found['seeds'])} seeds"
            axis.plot(found["steps"], mean, color=colour, linewidth=2, label=label)
        for policy, score in summary["data_policies"].items():
            axis.axhline(score, color=_GREY, linewidth=1, linestyle="--")
            axis.annotate(f"data: {policy}", (1, score), xycoords=axis.get_yaxis_transform(), ha="right", va="bottom")
        if found["switch"] is not None:
            mark_switch(axis, found["switch"])
        axis.set(xlabel="updates", ylabel=LABELS[summary["metric"].partition(",")[0]])
        axis.spines[["top", "right"]].set_visible(False)
        figure.legend(frameon=False, loc="outside upper left", ncols=2)
        return svg(figure, "chart")


def growth(summary: dict[str, Any], value: str) -> str:
    """A results file of `benchmarks.growth` as an SVG, with a panel for each changed size.

    Args:
        summary: The results file.
        value: The value to draw: `updates_per_second`, `share` of the matmul peak, or `gib`.
    """
    labels = {"updates_per_second": "updates/s", "share": "share of matmul peak", "gib": "GiB"}
    heights: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "updates_per_second": lambda point: point["updates_per_second"]["max"],
        "share": partial(share_of_peak, summary),
        "gib": itemgetter("gib"),
    }
    rows = -(-len(AXES) // _COLUMNS)
    with _both_themes():
        figure = Figure(figsize=(_WIDTH, 1.7 * rows + 0.4), layout="constrained")
        panels = figure.subplots(rows, _COLUMNS, squeeze=False, sharey=True).flat
        for axis, (name, values) in zip(panels, AXES.items(), strict=False):
            for side, title in FRAMEWORKS.items():
                if side == "jax" or name != "seeds":
                    points = along(summary, name, side)
                    drawn = [heights[value](points[place]) for place in values]
                    axis.plot(values, drawn, "o-", color=_COLOURS[title], markersize=3.5, linewidth=1.2, label=title)
            axis.set_xscale("log")
            axis.set_xticks(values, list(map(_short, values)))
            axis.minorticks_off()
            axis.set_title(name, loc="left", fontsize=10, fontweight="bold")
            axis.spines[["top", "right"]].set_visible(False)
        for axis in figure.axes[len(AXES) :]:
            axis.remove()
        # All panels share one axis.
        if value == "updates_per_second":
            figure.axes[0].set_yscale("log")
        else:
            figure.axes[0].set_ylim(0, None)
        figure.supylabel(labels[value], fontsize=9)
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
        return svg(figure, "chart")


def peaks(summary: dict[str, Any]) -> str:
    """A results file of the default code as an SVG: each algorithm's shares of the matmul peak, least work on top.

    A line joins both frameworks' shares. The GFLOP of an update follow the name.
    """
    found = sorted(summary["algorithms"].items(), key=lambda item: item[1]["gflop_per_update"])
    with _both_themes():
        figure = Figure(figsize=(_WIDTH, 0.19 * len(found) + 0.9), layout="constrained")
        axis = figure.subplots()
        shares = {
            title: [algorithm["rungs"].get(rung, _UNKNOWN)["share_of_matmul_peak"] for _, algorithm in found]
            for title, rung in zip(FRAMEWORKS.values(), (EAGER, SHIPPED), strict=True)
        }
        axis.hlines(range(len(found)), shares["PyTorch"], shares["JAX"], color=_GREY, linewidth=0.8)
        for title, places in shares.items():
            axis.plot(places, range(len(found)), "o", color=_COLOURS[title], markersize=4, label=title)
        names = [f"{name}, {_two_digits(algorithm['gflop_per_update'])}" for name, algorithm in found]
        axis.set_yticks(range(len(found)), names)
        axis.set_ylim(len(found) - 0.4, -0.6)
        axis.set_xlim(0, 1)
        axis.xaxis.set_major_formatter(PercentFormatter(1.0))
        axis.set_xlabel("share of matmul peak")
        axis.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper right", ncols=2, frameon=False)
        return svg(figure, "chart")


def starts(summary: dict[str, Any]) -> str:
    """A results file of `benchmarks.starts` as an SVG: seconds to the first update, and memory, by number of rows."""
    rows = sorted({run["rows"] for run in summary["starts"]})
    with _both_themes():
        figure = Figure(figsize=(_WIDTH, 2.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for side, title in FRAMEWORKS.items():
            for start, line in zip(STARTS, "-:", strict=True):
                runs = [start_of(summary, number, side, start) for number in rows]
                look = {"color": _COLOURS[title], "linestyle": line, "marker": "o", "markersize": 3.5}
                label = f"{title}, {start} start"
                left.plot(rows, [run["seconds_to_first_update"] for run in runs], label=label, **look)
                right.plot(rows, [run["gib"] for run in runs], **look)
        for axis, label in ((left, "seconds to the first update"), (right, "GiB")):
            axis.set(xscale="log", xlabel="rows", ylim=(0, None))
            axis.set_title(label, loc="left", fontsize=10, fontweight="bold")
            axis.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper left", ncols=2, frameon=False)
        return svg(figure, "chart")


def _short(value: int) -> str:
    """Formats numbers of up to four digits in full, longer ones with a unit."""
    return f"{value:,}" if value < 10_000 else EngFormatter(sep="")(value)


def _two_digits(value: float) -> str:
    """Rounds a number to two significant digits, without an exponent."""
    return f"{float(f'{value:.2g}'):g}"


@contextmanager
def _both_themes() -> Iterator[None]:
    """Sets the words' size, and a grey that is visible in both themes."""
    words = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _GREY)
    sizes = dict.fromkeys(("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9)
    settings: dict[Any, Any] = words | sizes
    with mpl.rc_context(settings):
        yield


def _staircase(axis: Axes, name: str, found: dict[str, Any], rungs: list[str]) -> None:
    """Draws one algorithm's rungs, the first one on top; a missing rung keeps its place."""
    lengths = {rung: best(found, rung) / best(found, EAGER) for rung in rungs if rung in found["rungs"]}
    colours = [_COLOURS[rung.replace(",", " ").split()[0]] for rung in lengths]
    places = [rungs.index(rung) for rung in lengths]
    axis.barh(places, list(lengths.values()), color=colours)
    for place, rung in zip(places, lengths, strict=True):
        share = f"{found['rungs'][rung]['share_of_matmul_peak']:.0%}"
        axis.text(1, place, share, transform=axis.get_yaxis_transform(), ha="right", va="center")
    axis.axvline(1.0, color=_GREY, linewidth=0.8, linestyle=":")
    axis.set_title(name, loc="left", fontsize=9, fontweight="bold")
    axis.set_xlim(0, 1.35 * max(lengths.values()))
    axis.set_yticks(range(len(rungs)), rungs)
    axis.set_ylim(len(rungs) - 0.4, -0.6)
    axis.spines[["top", "right"]].set_visible(False)
