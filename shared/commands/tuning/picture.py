"""A picture of a search: the trials' scores over the values that they tried."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from shared.commands.tuning.plan import Interval, Search
from shared.commands.tuning.record import Trial
from shared.runs.curves import drawable, png

# Width and height of a panel in inches, and the number of panels in a row
_WIDTH, _HEIGHT, _COLUMNS = 3.2, 2.8, 3


def draw_trials(search: Search, trials: Sequence[Trial], best: Trial) -> bytes:
    """Draws a PNG image with a panel for each setting; hollow marks are trials that were stopped early.

    Args:
        search: The search.
        trials: The trials with a score, at least one.
        best: The best of these trials.

    Raises:
        Exception: Whatever Matplotlib raises.
    """
    columns = min(_COLUMNS, len(search.search))
    rows = -(-len(search.search) // columns)
    figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows), dpi=150, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flat
    for axes, (name, space) in zip(panels, search.search.items(), strict=False):
        for trial in trials:
            value = trial.values[name]
            place = drawable(value) if isinstance(value, str) else value
            filled = "C0" if trial.share >= 1 else "none"
            axes.scatter(place, trial.score, facecolors=filled, edgecolors="C0", linewidths=1)
        if isinstance(space, Interval) and space.log:
            axes.set_xscale("log")
        axes.axhline(best.score, color="C1", linestyle="--", linewidth=1)
        axes.set(xlabel=drawable(name))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(figure.axes)[::columns]:
        axes.set(ylabel="score")
    for axes in list(figure.axes)[len(search.search) :]:
        axes.remove()
    figure.suptitle("trials; hollow ones were stopped early", fontsize="medium")
    return png(figure)
