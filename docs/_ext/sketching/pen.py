"""Parts of all sketches: panels, curves and labels in colors that are visible in both themes."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from boxes import GREY, INK, box

# The boxes' hues, as strong as a line needs to be on white and on black
SKY, AMBER = "#4a80e8", "#df7a1c"
# A phone shows a figure of this width almost in full; in inches
WIDTH = 4.8
SIZE = 11
# One dimension of actions, from the smallest to the largest
ACTIONS = np.linspace(-1.0, 1.0, 201)


def panels(figure: Figure, height: float, rows: int = 1, columns: int = 1, **layout: Any) -> list[Axes]:
    """The panels of a sketch with this height in inches, row by row."""
    figure.set_size_inches(WIDTH, height)
    return list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=layout).flat)


def plain(axes: Axes, x: str = "", y: str = "") -> None:
    """Draws two grey axes with names but without numbers."""
    axes.patch.set_visible(False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(GREY)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(x, color=GREY, fontsize=SIZE)
    axes.set_ylabel(y, color=GREY, fontsize=SIZE)


def drawing(figure: Figure, size: tuple[float, float]) -> Axes:
    """A panel without axes for boxes and arrows, with this width and height in its own units."""
    (axes,) = panels(figure, WIDTH * size[1] / size[0])
    axes.set(xlim=(0.0, size[0]), ylim=(0.0, size[1]))
    axes.set_axis_off()
    return axes


def rounded(values: Any) -> np.ndarray:
    """Rounds off the last digits of values, which differ from processor to processor."""
    return np.round(np.asarray(values, float), 4)


def curve(axes: Axes, x: Any, y: Any, colour: str, **style: Any) -> None:
    """Draws a line."""
    axes.plot(rounded(x), rounded(y), color=colour, **{"lw": 2.2, "solid_capstyle": "round", **style})


def shade(axes: Axes, x: Any, low: Any, high: Any, colour: str, **style: Any) -> None:
    """Fills the area between two lines."""
    axes.fill_between(rounded(x), rounded(low), rounded(high), color=colour, lw=0, **style)


def point(axes: Axes, x: float, y: float, colour: str, marker: str = "o", size: float = 8.0) -> None:
    """Draws a point."""
    axes.plot(rounded([x]), rounded([y]), marker, color=colour, ms=size, mec="none", clip_on=False, zorder=4)


def label(axes: Axes, x: float, y: float, text: str, colour: str = GREY, **style: Any) -> None:
    """Draws a centred text."""
    places = {"ha": "center", "va": "center", "fontsize": SIZE, "linespacing": 1.15}
    axes.text(*rounded([x, y]), text, color=colour, **{**places, **style})


def ticks(axes: Axes, actions: Any, height: float = 0.07, colour: str = GREY) -> None:
    """Draws the data's actions as ticks on the lower axis."""
    where = axes.get_xaxis_transform()
    axes.vlines(rounded(actions), 0.0, height, color=colour, lw=1.3, transform=where, clip_on=False)


def upright(axes: Axes, x: float, colour: str = GREY) -> None:
    """Draws a dashed line from bottom to top."""
    axes.axvline(float(rounded(x)), color=colour, lw=1.3, ls=(0, (4, 3)))


def level(axes: Axes, y: float, colour: str = GREY) -> None:
    """Draws a dashed line from left to right."""
    axes.axhline(float(rounded(y)), color=colour, lw=1.3, ls=(0, (4, 3)))


def pull(axes: Axes, start: Any, end: Any, colour: str, **style: Any) -> None:
    """Draws a coloured arrow from one point to another."""
    drawn = {"arrowstyle": "-|>", "color": colour, "lw": 2.0, "shrinkA": 4, "shrinkB": 4, **style}
    axes.annotate("", tuple(rounded(end)), tuple(rounded(start)), arrowprops=drawn)


def named(axes: Axes, middle: tuple[float, float], size: tuple[float, float], text: str, colour: str) -> None:
    """Draws a box with a text."""
    box(axes, middle, size, colour)
    label(axes, *middle, text, INK)
