"""Sketches of the algorithms that learn in an environment without a distribution over actions."""

import numpy as np
from matplotlib.figure import Figure

from sketching import pen
from sketching.pen import ACTIONS, AMBER, GREY, SKY


def online_ddpg(figure: Figure) -> None:
    """A critic over one action dimension, whose slope the policy's action follows upwards, with exploration noise."""
    (axes,) = pen.panels(figure, 2.7)
    q = np.exp(-5.0 * (ACTIONS - 0.35) ** 2)
    place = 80
    action, value = ACTIONS[place], q[place]
    slope = np.gradient(q, ACTIONS)[place]
    pen.shade(axes, ACTIONS, 0.0 * ACTIONS, 0.22 * np.exp(-0.5 * ((ACTIONS - action) / 0.1) ** 2), AMBER, alpha=0.4)
    pen.curve(axes, ACTIONS, q, GREY)
    pen.point(axes, action, value, SKY)
    pen.pull(axes, (action, value), (action + 0.3, value + 0.3 * slope), SKY)
    pen.label(axes, action - 0.08, value + 0.06, "the policy's action", SKY, ha="right")
    pen.label(axes, action - 0.28, 0.12, "exploration", AMBER, ha="right")
    pen.plain(axes, "action", "Q")
    axes.set_ylim(0.0, 1.15)


def online_td3(figure: Figure) -> None:
    """Two critics with separate errors; their minimum, and its mean over the noise on the target action."""
    (axes,) = pen.panels(figure, 3.0)
    true = 0.55 + 0.3 * np.cos(2.2 * (ACTIONS - 0.1))
    first = true + 0.2 * np.sin(9.0 * ACTIONS + 0.3) + 0.12
    second = true + 0.2 * np.sin(7.0 * ACTIONS - 1.4) + 0.12
    smaller = np.minimum(first, second)
    spread = np.exp(-0.5 * ((ACTIONS[:, None] - ACTIONS) / 0.15) ** 2) * (np.abs(ACTIONS[:, None] - ACTIONS) < 0.4)
    pen.curve(axes, ACTIONS, first, SKY, lw=1.2, alpha=0.6)
    pen.curve(axes, ACTIONS, second, SKY, lw=1.2, alpha=0.6)
    pen.curve(axes, ACTIONS, smaller, SKY, lw=2.6)
    pen.curve(axes, ACTIONS, spread @ smaller / spread.sum(axis=1), AMBER, lw=2.6)
    pen.curve(axes, ACTIONS, true, GREY, ls=(0, (4, 3)))
    pen.label(axes, -0.83, 0.97, "two critics", SKY)
    pen.label(axes, 0.68, 0.38, "the smaller", SKY)
    pen.label(axes, -0.42, 0.62, "smoothed", AMBER)
    pen.label(axes, -0.83, 0.24, "true value")
    pen.plain(axes, "target action", "Q")
    axes.set_ylim(0.0, 1.25)


def online_dqn(figure: Figure) -> None:
    """The value of one action over the updates; its target is constant between two copies."""
    (axes,) = pen.panels(figure, 2.7)
    updates = np.linspace(0.0, 1.0, 401)
    value = 0.1 + 0.8 * (1.0 - np.exp(-2.6 * updates)) + 0.03 * np.sin(38.0 * updates) * (1.0 - updates)
    copied = np.floor(5.0 * updates) / 5.0
    target = np.interp(copied, updates, value)
    pen.curve(axes, updates, target, AMBER, lw=2.6)
    pen.curve(axes, updates, value, SKY)
    for start in np.arange(1, 5) / 5.0:
        pen.point(axes, start, np.interp(start, updates, value), SKY)
    pen.label(axes, 0.3, 0.66, "the critic", SKY, ha="right")
    pen.label(axes, 0.66, 0.33, "its target: a copy from time to time", AMBER)
    pen.plain(axes, "updates", "Q")
    axes.set_ylim(0.0, 1.0)
