"""Sketches of learned models of the environment."""

import numpy as np
from matplotlib.figure import Figure

from sketching import pen
from sketching.pen import AMBER, GREY, SKY


def model_based_combo(figure: Figure) -> None:
    """A critic that is lowered along roll-outs and raised at the data, and one trained on the squared error alone."""
    (axes,) = pen.panels(figure, 3.0)
    x = np.linspace(-1.0, 1.0, 201)
    near = np.exp(-((x / 0.34) ** 2))
    before, after = 0.25 + 0.35 * x**2 + 0.1 * x, 0.3 * near - 0.5 * (1.0 - near) + 0.1 * x
    pen.curve(axes, x, before, GREY, ls=(0, (4, 3)), lw=1.6)
    pen.curve(axes, x, after, AMBER)
    for place in (20, 180):
        pen.pull(axes, (x[place], before[place]), (x[place], after[place]), AMBER)
    for start, step in ((-0.3, -0.13), (-0.15, -0.06), (0.05, 0.09), (0.3, 0.13)):
        points, heights = start + step * np.arange(5), -0.95 + 0.05 * np.arange(5)
        pen.curve(axes, points, heights, SKY, lw=1.6)
        axes.plot(points[1:], heights[1:], "o", color=SKY, ms=4)
    pen.ticks(axes, np.linspace(-0.35, 0.35, 16) + 0.02 * np.sin(np.arange(16) * 2.3))
    pen.label(axes, 0.0, 0.62, "squared error alone", GREY)
    pen.label(axes, 0.0, -0.33, "raised\nat the data", AMBER)
    pen.label(axes, -0.52, 0.08, "pushed down\nalong roll-outs", AMBER)
    pen.label(axes, 0.5, 0.08, "COMBO's\ncritic", AMBER)
    pen.plain(axes, "states", "Q")
    axes.set_ylim(-1.15, 0.85)


def model_based_dynamics(figure: Figure) -> None:
    """The members' predictions over states and actions, which agree near the data and differ away from it."""
    (axes,) = pen.panels(figure, 3.0)
    x = np.linspace(-1.0, 1.0, 201)
    true = 0.5 * np.sin(2.6 * x)
    away = np.clip(x - 0.15, 0.0, None) ** 2 + np.clip(-0.75 - x, 0.0, None) ** 2
    pen.shade(axes, x, true - 0.07 - 1.1 * away, true + 0.07 + 1.1 * away, AMBER, alpha=0.25)
    for slope in (-0.8, -0.3, 0.25, 0.7):
        pen.curve(axes, x, true + slope * away, SKY, lw=1.6)
    pen.curve(axes, x, true, GREY, ls=(0, (4, 3)), lw=1.6)
    pen.ticks(axes, np.linspace(-0.8, 0.2, 16) + 0.03 * np.sin(np.arange(16) * 2.3))
    pen.label(axes, -0.3, 0.62, "members agree\nwhere there is data", SKY)
    pen.label(axes, 0.52, -0.55, "and part, unsure, where there is none:\nthe penalty", AMBER)
    pen.plain(axes, "states and actions", "change of the state, reward")
    axes.set_ylim(-0.9, 1.3)


def model_based_mobile(figure: Figure) -> None:
    """Members' next states, far apart where values are level, and close together where they are steep."""
    (axes,) = pen.panels(figure, 3.0)

    def value(x: np.ndarray) -> np.ndarray:
        return -0.45 + 1.0 / (1.0 + np.exp(-14.0 * (x - 0.45)))

    x = np.linspace(-1.0, 1.0, 201)
    pen.curve(axes, x, value(x), GREY)
    for states in (np.array([-0.85, -0.6, -0.4, -0.12]), np.array([0.33, 0.41, 0.5, 0.57])):
        heights = value(states)
        for state, height in zip(states, heights, strict=True):
            pen.curve(axes, [state, state], [-0.95, height], SKY, lw=1.0, ls=(0, (2, 3)))
            pen.point(axes, state, -0.95, SKY, size=6)
            pen.point(axes, state, height, AMBER, size=6)
        edge = states.max() + 0.12
        pen.curve(axes, [edge, edge], [heights.min() - 0.03, heights.max() + 0.03], AMBER, lw=5.0)
    pen.label(axes, -0.48, -0.05, "states apart, values equal:\nno penalty", AMBER)
    pen.label(axes, 0.02, 0.5, "states close, values apart:\na penalty", AMBER)
    pen.label(axes, 0.84, -0.82, "the members'\nnext states", SKY)
    pen.plain(axes, "states", "Q")
    axes.set_ylim(-1.05, 0.85)


def model_based_mopo(figure: Figure) -> None:
    """Roll-outs from the data; the further they leave it, the larger is the penalty on their rewards."""
    (axes,) = pen.panels(figure, 3.0)
    x = np.linspace(-1.0, 1.0, 201)
    away = np.clip(np.abs(x) - 0.35, 0.0, None) ** 2
    pen.shade(axes, x, 0.55 - 1.9 * away, 0.55 + 0.0 * x, AMBER, alpha=0.25)
    pen.curve(axes, x, 0.55 + 0.0 * x, GREY, ls=(0, (4, 3)), lw=1.6)
    pen.curve(axes, x, 0.55 - 1.9 * away, AMBER, lw=1.6)
    for start, step in ((-0.3, -0.11), (-0.15, -0.05), (0.05, 0.08), (0.3, 0.13)):
        points = start + step * np.arange(5)
        pen.curve(axes, points, -0.45 + 0.08 * np.arange(5) * np.sign(step), SKY, lw=1.6)
        axes.plot(points[1:], (-0.45 + 0.08 * np.arange(5) * np.sign(step))[1:], "o", color=SKY, ms=4)
    pen.ticks(axes, np.linspace(-0.35, 0.35, 16) + 0.02 * np.sin(np.arange(16) * 2.3))
    pen.label(axes, 0.0, 0.78, "the model's reward, and less its penalty", AMBER)
    pen.label(axes, 0.0, -0.05, "roll-outs begin at states of the data", SKY)
    pen.plain(axes, "states", "")
    axes.set_ylim(-1.0, 1.1)
