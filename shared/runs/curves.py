"""Draws learning curves."""

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

LABELS = {
    "d4rl_normalized_score": "D4RL score",
    "normalized_return_not_d4rl": "normalised return (not in D4RL's environment)",
    "normalized_return": "normalised return",
    "success_percent": "success rate in percent",
    "return_mean": "return",
    "initial_state_value": "estimated value in first states",
    "action_error": "action error",
    "steps_followed": "steps that the model follows an episode",
}
# Metrics for which less is better. They are small, so they are printed with more digits than a score.
ERRORS = ("action_error",)
_ERROR_PLACES = 4
# A run's score is the mean of this many last evaluations.
AVERAGED = 3
# Name of the picture in a run's folder
PICTURE = "learning_curve.png"

LARGEST = 1e100
"""Largest return that is drawn: whatever a picture multiplies it by stays finite."""

# Longest line of text in a picture, in characters, and how many of them are kept from its end
_LONGEST, _END = 60, 15


class Curve(NamedTuple):
    """Evaluations over a run.

    Attributes:
        metric: A key of `LABELS`.
        steps: (E,), updates done before each evaluation.
        values: (E, n_episodes), one per episode.
        references: The same metric of other policies by name, such as those the data came from.
        switch: Number of updates before the online phase; None for a run without one.
    """

    metric: str
    steps: np.ndarray
    values: np.ndarray
    references: dict[str, float]
    switch: int | None = None


def places(metric: str) -> int:
    """The number of decimal places with which a metric is printed."""
    return _ERROR_PLACES if metric in ERRORS else 1


def printable(text: str) -> str:
    """A name from a file or a folder on one line, with `?` for what cannot be printed."""
    return "".join(character if character.isprintable() else "?" for character in text)


def drawable(text: str) -> str:
    """A `printable` name escaped for Matplotlib, so that it contains no formulas; long names are cut in the middle."""
    shown = printable(text)
    if len(shown) > _LONGEST:
        shown = f"{shown[: _LONGEST - _END]}...{shown[-_END:]}"
    return shown.replace("$", r"\$")


def png(figure: Figure) -> bytes:
    """A figure as a PNG image.

    Raises:
        Exception: Whatever Matplotlib raises.
    """
    # The box that replaces a missing glyph says enough.
    warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from font", category=UserWarning)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def svg(figure: Figure, name: str) -> str:
    """Renders a figure as an SVG with a transparent background, reproducibly: `name` is the salt of its ids.

    Raises:
        Exception: Whatever Matplotlib raises.
    """
    image = io.StringIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(image, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return image.getvalue()


def mark_switch(axes: Axes, step: int) -> None:
    """Draws a line where the online phase begins, with a label for the legend."""
    axes.axvline(step, color="0.5", linestyle=":", linewidth=1, label="online from here on")


def count_updates(axes: Axes) -> None:
    """Labels the x axis with short whole numbers: 500, 1k, 1.5k."""
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def draw_model(
    epochs: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], near: float, title: str
) -> bytes:
    """Draws a dynamics model's run as a PNG image: each member's held-out error, and roll-outs' distance from episodes.

    Args:
        epochs: Rows with `step`, and with `holdout_loss_0` and so on for each member.
        evaluations: Rows with `step` and `rollout_errors`; the first, the middle and the last are drawn.
        near: The error up to which a roll-out follows its episode.
        title: Title of the picture.

    Raises:
        Exception: Whatever Matplotlib raises.
    """
    figure = Figure(figsize=(9, 3.8), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in epochs]
    members = sorted(name for name in epochs[0] if name.startswith("holdout_loss_"))
    for index, name in enumerate(members):
        left.plot(steps, [row[name] for row in epochs], color=f"C{index % 10}", linewidth=1, label=name[13:])
    left.set(xlabel="epochs", ylabel="squared error on held-out rows", yscale="log")
    left.legend(title="member", frameon=False, fontsize="x-small", ncols=2)
    chosen = sorted({0, len(evaluations) // 2, len(evaluations) - 1})
    for shade, row in zip(np.linspace(0.3, 1.0, len(chosen)), (evaluations[i] for i in chosen), strict=True):
        errors = row["rollout_errors"]
        right.plot(range(1, len(errors) + 1), errors, color="C0", alpha=shade, label=f"after epoch {row['step']}")
    right.axhline(near, color="0.5", linestyle=":", linewidth=1)
    right.set(xlabel="steps rolled out", ylabel="error of the state, in deviations", yscale="log")
    right.legend(frameon=False, fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(drawable(title))
    return png(figure)


def draw_curve(curve: Curve, title: str, unit: str = "updates") -> bytes:
    """Draws the curve as a PNG image over `unit`: mean and standard deviation over episodes, and dashed references.

    Raises:
        Exception: Whatever Matplotlib raises.
    """
    # Figures made without pyplot share no state with a notebook's or another thread's.
    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    mean, spread = curve.values.mean(axis=1), curve.values.std(axis=1)
    band: dict[str, Any] = {"color": "C0", "alpha": 0.2, "linewidth": 0, "label": "standard deviation over episodes"}
    axes.fill_between(curve.steps, mean - spread, mean + spread, **band)
    axes.plot(curve.steps, mean, "o-", color="C0", markersize=3.5, linewidth=1.2)
    for index, (name, value) in enumerate(sorted(curve.references.items())):
        axes.axhline(value, color=f"C{index + 1}", linestyle="--", linewidth=1, label=f"data: {drawable(name)} policy")
    if curve.switch is not None:
        mark_switch(axes, curve.switch)
    axes.legend(frameon=False, fontsize="small")
    axes.set(title=drawable(title), xlabel=unit, ylabel=LABELS[curve.metric])
    count_updates(axes)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return png(figure)
