"""Sketches of learnt models of the environment."""

import numpy as np
from matplotlib.figure import Figure

from sketching import pen
from sketching.pen import AMBER, GREY, SKY


def model_based_dynamics(figure: Figure) -> None:
    """What members predict over states and actions: near the data they agree, away from it they part and are unsure."""
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
