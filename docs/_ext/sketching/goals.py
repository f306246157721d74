"""Sketches of the algorithms that learn to reach goals."""

import itertools

import numpy as np
from matplotlib.figure import Figure

from boxes import GREY
from sketching import pen
from sketching.pen import AMBER, SKY

# A way that wanders to a goal: points in a plane
WAY = np.array([(0.0, 0.0), (0.5, 0.5), (0.2, 1.1), (0.9, 1.4), (1.5, 1.0), (1.2, 0.4), (1.9, 0.1), (2.6, 0.5)])
GOAL = (3.2, 1.0)


def goal_conditioned_gcbc(figure: Figure) -> None:
    """A trajectory that wanders to a goal, and whose every action is imitated."""
    (axes,) = pen.panels(figure, 2.3)
    points = [*map(tuple, WAY), GOAL]
    for start, end in itertools.pairwise(points):
        pen.pull(axes, start, end, SKY)
    for point in points[:-1]:
        pen.point(axes, *point, GREY, size=5)
    pen.point(axes, *GOAL, AMBER, "*", 16)
    pen.label(axes, GOAL[0], GOAL[1] + 0.35, "goal", AMBER)
    pen.label(axes, 0.0, -0.35, "state")
    pen.plain(axes)
    axes.set(xlim=(-0.4, 3.7), ylim=(-0.6, 1.8))


def goal_conditioned_gcivl(figure: Figure) -> None:
    """Values that fall with the distance from the goal, and weights of steps towards it and away."""
    left, right = pen.panels(figure, 2.7, columns=2)
    x = np.linspace(-1.0, 1.0, 201)
    pen.curve(left, x, -1.0 + 0.9 ** (20.0 * np.abs(x - 0.4)), SKY)
    pen.point(left, 0.4, 0.0, AMBER, "*", 16)
    pen.label(left, 0.4, 0.13, "goal", AMBER)
    pen.plain(left, "state", "V")
    left.set_ylim(-1.05, 0.25)
    pen.curve(right, x, np.minimum(np.exp(3.0 * x), 9.0), AMBER)
    pen.upright(right, 0.0)
    pen.label(right, -0.55, 5.0, "away")
    pen.label(right, 0.55, 14.0, "towards")
    pen.plain(right, "V(s') - V(s)", "weight")
    right.set_ylim(0.0, 16.0)


def goal_conditioned_gciql(figure: Figure) -> None:
    """Q over actions, the data's action, and a policy's action that both pull at."""
    (axes,) = pen.panels(figure, 2.5)
    actions = pen.ACTIONS
    pen.curve(axes, actions, 0.2 + 0.7 * (actions + 1.0) / 2.0, SKY)
    pen.label(axes, 0.75, 0.95, "Q", SKY)
    pen.ticks(axes, [-0.4])
    pen.label(axes, -0.4, 0.14, "data")
    pen.point(axes, 0.1, 0.585, AMBER)
    pen.label(axes, 0.1, 0.75, "policy", AMBER)
    pen.pull(axes, (0.13, 0.585), (0.55, 0.585), SKY)
    pen.pull(axes, (0.07, 0.585), (-0.35, 0.585), GREY)
    pen.label(axes, -0.45, 0.7, "cloning")
    pen.plain(axes, "action", "value")
    axes.set(xlim=(-1.05, 1.05), ylim=(0.0, 1.05))


def goal_conditioned_crl(figure: Figure) -> None:
    """A table of rows and goals, with a bright diagonal."""
    axes = pen.drawing(figure, (8.0, 4.4))
    for row in range(4):
        for column in range(4):
            middle = 2.6 + column, 3.4 - 0.9 * row
            pen.point(axes, *middle, AMBER if row == column else GREY, "s", 22.0 if row == column else 10.0)
    pen.label(axes, 0.9, 2.05, "states and\nactions", SKY)
    pen.label(axes, 4.1, 4.15, "goals of all rows", SKY)
    pen.label(axes, 7.1, 2.5, "own goal", AMBER)
    pen.label(axes, 7.1, 1.6, "others")
