"""A sketch of evaluating a policy without an environment."""

import numpy as np
from matplotlib.figure import Figure

from sketching import pen
from sketching.pen import AMBER, GREY, SKY


def evaluation_fqe(figure: Figure) -> None:
    """Values over updates: the target is constant while the critic learns from it, and then becomes its copy."""
    (axes,) = pen.panels(figure, 3.0)
    regressions, true = 6, 1.0
    targets = true * (1.0 - 0.62 ** np.arange(regressions + 1))
    for number in range(regressions):
        part = np.linspace(0.0, 1.0, 40)
        approach = targets[number + 1] - (targets[number + 1] - targets[number]) * np.exp(-4.0 * part)
        pen.curve(axes, number + part, approach, SKY, lw=2.6)
        pen.curve(axes, number + part, 0.0 * part + targets[number], AMBER, lw=2.0)
    pen.curve(axes, np.array([0.0, regressions]), np.array([true, true]), GREY, ls=(0, (4, 3)))
    pen.label(axes, 1.3, true + 0.08, "the policy's value")
    pen.label(axes, 1.3, 0.68, "critic", SKY)
    pen.label(axes, 3.2, 0.52, "its target: a copy", AMBER)
    pen.plain(axes, "regressions", "Q")
    axes.set_ylim(0.0, 1.2)
