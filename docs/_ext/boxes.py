"""Boxes and arrows of the site's drawings: dark words on a light ground, a grey that shows in both themes."""

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

GREY, INK = "#808080", "#1f2328"
BLUE, ORANGE, GREEN, PALE = "#dfe9fb", "#fdebd3", "#dff3e0", "#eeeeee"


def box(axes: Axes, middle: tuple[float, float], size: tuple[float, float], colour: str) -> None:
    """Draws a box with this width and height around its middle."""
    corner = tuple(place - length / 2 for place, length in zip(middle, size, strict=True))
    axes.add_patch(FancyBboxPatch(corner, *size, "round,pad=0,rounding_size=0.1", fc=colour, ec=GREY))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draws an arrow from one point to another."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": GREY, "lw": 1.5})
