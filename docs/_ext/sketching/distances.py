"""Values and distances on the way to a goal."""

import numpy as np
from matplotlib.figure import Figure

from boxes import GREY
from sketching import pen
from sketching.pen import AMBER, SKY


def goal_conditioned_hiql(figure: Figure) -> None:
    """A value with errors on the way to the goal: the subgoal is better than the state, the next state is not."""
    (axes,) = pen.panels(figure, 2.8)
    way = np.linspace(0.0, 1.0, 101)
    true = np.exp(-1.6 * (1.0 - way))
    value = true + 0.035 * np.sin(97.0 * way) * np.cos(31.0 * way) + 0.02 * np.sin(61.0 * way + 1.0)
    pen.curve(axes, way, true, GREY, lw=1.2, ls="--")
    pen.curve(axes, way, value, SKY, lw=1.6)
    for place, colour, marker, size in ((23, GREY, "o", 7), (26, GREY, "o", 7), (52, AMBER, "*", 16)):
        pen.point(axes, way[place], value[place], colour, marker, size)
    pen.label(axes, way[23], value[23] + 0.1, "s")
    pen.label(axes, way[26] + 0.02, value[26] - 0.1, "s'")
    pen.label(axes, way[52], value[52] + 0.12, "subgoal", AMBER)
    pen.label(axes, 0.98, 0.62, "goal", ha="right")
    pen.upright(axes, 1.0)
    pen.plain(axes, "way to the goal", "V")
    axes.set(xlim=(0, 1.02), ylim=(0, 1.1))


def goal_conditioned_qrl(figure: Figure) -> None:
    """A string of steps between two states that are pulled apart, and a detour that stays slack."""
    axes = pen.drawing(figure, (10.0, 5.0))
    way = np.linspace(1.6, 8.4, 8)
    turns = np.linspace(0.0, np.pi, 13)
    detour = 5.0 - 3.4 * np.cos(turns) + 0.25 * np.sin(6.0 * turns), 2.4 - 1.5 * np.sin(turns)
    pen.curve(axes, *detour, GREY, lw=1.4)
    for x, y in zip(*detour, strict=True):
        pen.point(axes, x, y, GREY, size=4)
    pen.curve(axes, way, 0.0 * way + 2.4, SKY)
    for x in way:
        pen.point(axes, x, 2.4, SKY, size=6)
    for end, direction, name in ((1.6, -1.0, "s"), (8.4, 1.0, "g")):
        pen.pull(axes, (end + 0.25 * direction, 2.4), (end + 1.4 * direction, 2.4), AMBER)
        pen.label(axes, end, 2.95, name)
    pen.label(axes, 5.0, 3.0, "each step at most 1", SKY)
    pen.label(axes, 5.0, 4.3, "as far apart as the shortest way allows", AMBER)
