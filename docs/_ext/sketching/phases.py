"""Sketches of the algorithms that go on in the environment: what changes at the switch."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from boxes import BLUE, GREEN, GREY, INK, ORANGE, arrow
from sketching.critics import conservative, density, fitted, held_back
from sketching.ensembles import MIDDLE, PUSH, TARGETS, best
from sketching.offline import DATA, rising
from sketching.pen import (
    ACTIONS,
    AMBER,
    SKY,
    curve,
    drawing,
    label,
    level,
    named,
    panels,
    plain,
    point,
    shade,
    ticks,
    upright,
)

# Offline updates before 0, online ones after it, each phase 1 long
TIMES = np.linspace(-1.0, 1.0, 401)
ONLINE = TIMES >= 0


def batches(axes: Axes, new: np.ndarray) -> None:
    """What a batch is made of over time: the share of the environment's steps above the data."""
    shade(axes, TIMES, 0.0 * TIMES, 1.0 + 0.0 * TIMES, BLUE)
    shade(axes, TIMES[ONLINE], 1.0 - new[ONLINE], 1.0, ORANGE)
    label(axes, -0.5, 0.5, "data", INK)
    plain(axes, "", "batch")
    axes.set(xlim=(-1, 1), ylim=(0, 1))


def switches(above: Axes, *others: Axes) -> None:
    """The line between the phases, with their names over the first panel."""
    for axes in (above, *others):
        upright(axes, 0.0)
    for x, name in ((-0.5, "offline"), (0.5, "online")):
        label(above, x, 1.12, name, transform=above.get_xaxis_transform())


def finetune_awac(figure: Figure) -> None:
    """One update before the switch and after it, first on the data and then on what the policy does too."""
    axes = drawing(figure, (9.6, 4.2))
    size = (2.5, 0.9)
    for x, rows, update in ((1.4, "data", "update"), (5.0, "data + steps", "same update")):
        named(axes, (x, 2.6), size, rows, BLUE)
        named(axes, (x, 0.8), size, update, GREEN)
        arrow(axes, (x, 2.15), (x, 1.25))
    named(axes, (8.3, 2.6), size, "environment", ORANGE)
    named(axes, (8.3, 0.8), size, "policy acts", ORANGE)
    arrow(axes, (6.25, 0.8), (7.05, 0.8))
    arrow(axes, (8.3, 1.25), (8.3, 2.15))
    arrow(axes, (7.05, 2.6), (6.25, 2.6))
    upright(axes, 3.2)
    label(axes, 1.4, 3.7, "offline")
    label(axes, 6.65, 3.7, "online")


def finetune_iql(figure: Figure) -> None:
    """The share of new steps in a batch, and the policy's learning rate."""
    above, below = panels(figure, 3.3, rows=2)
    batches(above, np.maximum(TIMES, 0.0) / (1.0 + np.maximum(TIMES, 0.0)))
    label(above, 0.78, 0.82, "steps", INK)
    curve(below, TIMES, np.sin(np.pi / 2.0 * TIMES) ** 2, AMBER)
    plain(below, "updates", "policy's\nlearning rate")
    below.set(xlim=(-1, 1), ylim=(0, 1.1))
    switches(above, below)


def finetune_cql(figure: Figure) -> None:
    """The critic at the switch, and after the policy's own steps have joined the data."""
    (axes,) = panels(figure, 2.8)
    tried = np.array([0.36, 0.42, 0.47, 0.5, 0.55, 0.6, 0.66])
    for data, colour in ((MIDDLE, GREY), (np.append(MIDDLE, tried), AMBER)):
        q = conservative(density(data), TARGETS, PUSH)
        curve(axes, ACTIONS, q, colour)
        best(axes, q, colour)
    ticks(axes, MIDDLE)
    ticks(axes, tried, colour=AMBER)
    plain(axes, "action", "Q")
    axes.set_ylim(-2.1, 2.9)
    label(axes, 0.28, 0.6, "offline", ha="right")
    label(axes, 0.35, 2.45, "online", AMBER, ha="right")
    label(axes, -0.4, -1.8, "data", ha="right")
    label(axes, 0.7, -1.8, "steps", AMBER, ha="left")


def finetune_cal_ql(figure: Figure) -> None:
    """A critic that nothing pushes, CQL's, and Cal-QL's, which has the data's return for a floor."""
    (axes,) = panels(figure, 2.8)
    sampled, weight = np.array([0.48, 0.52, 0.55, 0.58, 0.61, 0.65]), density(MIDDLE)
    earned = float(weight @ TARGETS)
    curve(axes, ACTIONS, fitted(weight, TARGETS), GREY, lw=1.2, ls="--")
    for floor, colour in ((-np.inf, GREY), (earned, AMBER)):
        curve(axes, ACTIONS, conservative(weight, TARGETS, PUSH, floor, density(sampled)), colour)
    level(axes, earned, SKY)
    ticks(axes, MIDDLE)
    ticks(axes, sampled, colour=AMBER)
    plain(axes, "action", "Q")
    axes.set_ylim(-2.9, 3.3)
    label(axes, -0.98, earned + 0.35, "the data's return", SKY, ha="left")
    label(axes, 0.98, earned + 0.35, "Cal-QL", AMBER, ha="right")
    label(axes, 0.52, 0.0, "CQL", ha="right")
    label(axes, -0.4, -2.55, "data", ha="right")
    label(axes, 0.7, -2.55, "policy", AMBER, ha="left")


def finetune_rebrac(figure: Figure) -> None:
    """Half of each batch is new online; one distance's weight falls, and the other's is gone."""
    above, below = panels(figure, 3.3, rows=2, height_ratios=(1.0, 1.4))
    batches(above, np.where(ONLINE, 0.5, 0.0))
    label(above, 0.5, 0.75, "steps", INK)
    label(above, 0.5, 0.25, "data", INK)
    curve(below, TIMES, np.where(ONLINE, np.maximum(0.5, 1.0 - TIMES), 1.0), AMBER)
    curve(below, TIMES[~ONLINE], 0.6 + 0.0 * TIMES[~ONLINE], SKY)
    curve(below, TIMES[ONLINE], 0.0 * TIMES[ONLINE], SKY)
    label(below, -0.5, 0.86, "β₁ of the policy", AMBER)
    label(below, -0.5, 0.46, "β₂ of the target", SKY)
    plain(below, "updates", "weight")
    below.set(xlim=(-1, 1), ylim=(-0.04, 1.15))
    switches(above, below)


def finetune_spot(figure: Figure) -> None:
    """The weight over three phases, and the policy's action where it is whole and where it has cooled."""
    above, below = panels(figure, 3.8, rows=2, height_ratios=(1.0, 1.5))
    curve(above, TIMES, np.minimum(1.0, np.maximum(0.2, 1.0 - TIMES)), AMBER)
    for start in (-1.0, 0.0):
        upright(above, start)
    for x, name in ((-1.3, "VAE"), (-0.5, "offline"), (0.5, "online")):
        label(above, x, 1.12, name, transform=above.get_xaxis_transform())
    plain(above, "updates", "λ")
    above.set(xlim=(-1.6, 1), ylim=(0, 1.15))
    q, unlikely = rising(density(DATA)), -np.log(density(DATA, 0.25))
    curve(below, ACTIONS, q, SKY)
    for share, name in ((1.0, "whole λ"), (0.2, "cooled λ")):
        place = held_back(q, share * 0.25 * unlikely, 1.0)
        point(below, ACTIONS[place], q[place], AMBER, "*", 16)
        label(below, ACTIONS[place] - 0.05, q[place] + 0.22, name, AMBER, ha="right")
    ticks(below, DATA)
    plain(below, "action", "Q")
    label(below, -0.02, q[0] + 0.02, "data's actions", ha="left")
