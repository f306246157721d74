"""The figures of the page that introduces JAX. An SVG has the same text each time it is drawn."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from boxes import BLUE, GREEN, GREY, INK, ORANGE, PALE, arrow, box
from shared.runs.curves import svg

# Half of a box's height, in the figures' units
HALF = 0.34


def named(axes: Axes, x: float, y: float, text: str, colour: str, width: float = 2.4) -> None:
    """Draws a box with a text around its middle."""
    box(axes, (x, y), (width, 2 * HALF), colour)
    axes.text(x, y, text, ha="center", va="center", color=INK, fontsize=11)


def jit(axes: Axes) -> None:
    """Shows a first call on the left, a later one on the right."""
    axes.set(xlim=(-1.5, 5.1), ylim=(-4.0, 0.6))
    for y, text, colour in (
        (0.0, "first call", GREEN),
        (-1.2, "your Python code,\nwith tracers", ORANGE),
        (-2.4, "XLA compiles", ORANGE),
        (-3.6, "the program runs", BLUE),
    ):
        named(axes, 0.0, y, text, colour)
    for y in (0.0, -1.2, -2.4):
        arrow(axes, (0.0, y - HALF), (0.0, y - 1.2 + HALF))
    named(axes, 3.6, 0.0, "later call", GREEN)
    named(axes, 3.6, -3.6, "the program runs", BLUE)
    arrow(axes, (3.6, -HALF), (3.6, -3.6 + HALF))
    axes.text(3.75, -1.8, "same shapes,\ndtypes and\nstatic values", color=GREY, va="center", fontsize=10)


def tree(axes: Axes) -> None:
    """Shows the pytree of a network with one layer."""
    axes.set(xlim=(-2.9, 4.6), ylim=(-2.9, 0.6))
    named(axes, 0.7, 0.0, "Network", ORANGE)
    named(axes, -0.4, -1.2, "params", ORANGE)
    named(axes, 3.1, -1.2, "module: Linear(2)\nstatic", PALE, 2.8)
    named(axes, -1.6, -2.4, "kernel (3, 2)\nleaf", GREEN, 2.1)
    named(axes, 0.9, -2.4, "bias (2,)\nleaf", GREEN, 2.1)
    for start, end in (
        ((0.7, -HALF), (-0.4, -1.2 + HALF)),
        ((0.7, -HALF), (3.1, -1.2 + HALF)),
        ((-0.4, -1.2 - HALF), (-1.6, -2.4 + HALF)),
        ((-0.4, -1.2 - HALF), (0.9, -2.4 + HALF)),
    ):
        arrow(axes, start, end)


def keys(axes: Axes) -> None:
    """Shows a run's key, the keys of its updates, and the keys of an update's draws."""
    axes.set(xlim=(-3.1, 4.9), ylim=(-4.2, 0.6))
    named(axes, 0.9, 0.0, "key of the run", ORANGE)
    for x, step in ((-1.7, 998), (0.9, 999), (3.5, 1000)):
        named(axes, x, -1.4, f"fold_in(key, {step})", BLUE, 2.5)
        arrow(axes, (0.9, -HALF), (x, -1.4 + HALF))
    for x, text in ((1.2, "row_key"), (3.8, "noise_key")):
        named(axes, x, -2.6, text, GREEN, 2.0)
        arrow(axes, (3.5, -1.4 - HALF), (x, -2.6 + HALF))
    for x, text in ((1.2, "randint"), (3.8, "normal")):
        axes.text(x, -3.8, text, ha="center", va="center", color=GREY, fontsize=11)
        arrow(axes, (x, -2.6 - HALF), (x, -3.6))


FIGURES = {"primer_jit": jit, "primer_tree": tree, "primer_keys": keys}


def drawn(name: str) -> str:
    """Draws a figure as SVG, with the same text each time."""
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    FIGURES[name](axes)
    axes.set_axis_off()
    axes.set_aspect("equal")
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    figure.set_size_inches(0.75 * (right - left), 0.75 * (high - low))
    return svg(figure, name)
