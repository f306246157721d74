"""Results files as charts: ladders as staircases, what many seeds at once are worth, learning curves."""

import io
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.results import best
from benchmarks.rungs import EAGER, RUNGS, SHIPPED
from shared.runs.curves import mark_switch

_COLUMNS = 3
_COLOURS = {"PyTorch": "#ee4c2c", "JAX": "#5e4fa2"}
# Of learning curves: these, and the grey of their words, show on a light ground and on a dark one
_SIDES = {"torch": ("PyTorch", "#ee4c2c"), "jax": ("JAX", "#8c7ae0")}
_GREY = "#808080"


def staircases(summary: dict[str, Any]) -> bytes:
    """A results file as a PNG: each rung's best block over PyTorch eager's, and its share of the matmul peak."""
    algorithms = summary["algorithms"]
    rows = -(-len(algorithms) // _COLUMNS)
    figure = Figure(figsize=(12, 2.4 * rows + 1.2), dpi=110, layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, sharex=True, squeeze=False)
    for axis, (name, found) in zip(axes.flat, algorithms.items(), strict=False):
        _staircase(axis, name, found)
    for axis in axes.flat[len(algorithms) :]:
        axis.remove()
    figure.supylabel(f"updates per second over {EAGER}")
    return _png(figure)


def seeds(summary: dict[str, Any]) -> bytes:
    """A results file as a PNG: updates per second of all seeds together over those of one alone, by their number."""
    figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
    axis = figure.subplots()
    for name, found in summary["algorithms"].items():
        counts = {RUNGS[rung].seeds: best(found, rung) for rung in found["rungs"] if rung.startswith(SHIPPED)}
        if len(counts) > 1:
            axis.plot(list(counts), [rate / counts[1] for rate in counts.values()], marker="o", label=name)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks := sorted({rung.seeds for rung in RUNGS.values()}), map(str, ticks))
    axis.axhline(1.0, color="black", linewidth=0.5, linestyle=":")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("seeds at once")
    axis.set_ylabel("updates per second over one seed's")
    axis.legend(fontsize=8, ncols=2)
    axis.spines[["top", "right"]].set_visible(False)
    return _png(figure)


def learning(summary: dict[str, Any]) -> str:
    """A results file as an SVG: each seed's scores over a run, their mean, and those of the data's policies."""
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    words: dict[Any, Any] = dict.fromkeys(names, _GREY)
    image = io.StringIO()
    with mpl.rc_context(words | {"svg.hashsalt": "learning", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(6, 3.4), layout="constrained")
        axis = figure.subplots()
        for framework, (name, colour) in _SIDES.items():
            found = summary["frameworks"][framework]
            axis.plot(found["steps"], np.transpose(found["curves"]), color=colour, linewidth=0.6, alpha=0.6)
            mean, label = np.mean(found["curves"], axis=0), f"{name}, mean of {len(found['seeds'])} seeds"
            axis.plot(found["steps"], mean, color=colour, linewidth=2, label=label)
        for policy, score in summary["data_policies"].items():
            axis.axhline(score, color=_GREY, linewidth=1, linestyle="--")
            axis.annotate(f"data: {policy}", (1, score), xycoords=axis.get_yaxis_transform(), ha="right", va="bottom")
        if found["switch"] is not None:
            mark_switch(axis, found["switch"])
        axis.set(xlabel="updates", ylabel="D4RL score")
        axis.spines[["top", "right"]].set_visible(False)
        figure.legend(frameon=False, fontsize="small", loc="outside upper left", ncols=3)
        figure.savefig(image, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return image.getvalue()


def _png(figure: Figure) -> bytes:
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _staircase(axis: Axes, name: str, found: dict[str, Any]) -> None:
    rungs = list(found["rungs"])
    heights = [best(found, rung) / best(found, EAGER) for rung in rungs]
    bars = axis.bar(rungs, heights, color=[_COLOURS[rung.replace(",", " ").split()[0]] for rung in rungs], width=0.9)
    shares = [f"{found['rungs'][rung]['share_of_matmul_peak']:.0%}" for rung in rungs]
    axis.bar_label(bars, shares, fontsize=7, padding=1)
    axis.axhline(1.0, color="black", linewidth=0.5, linestyle=":")
    axis.set_title(name, loc="left", fontsize=10)
    axis.set_ylim(0, 1.15 * max(heights))
    axis.tick_params(labelsize=7)
    axis.set_xticks(range(len(rungs)), rungs, rotation=50, ha="right", rotation_mode="anchor")
    axis.spines[["top", "right"]].set_visible(False)
