"""Sketches of the algorithms that continue in the environment: the changes at the switch."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from boxes import BLUE, GREEN, GREY, INK, ORANGE, arrow
from sketching import pen
from sketching.critics import conservative, density, fitted, held_back
from sketching.ensembles import MIDDLE, PUSH, TARGETS, best
from sketching.offline import DATA, rising
from sketching.pen import ACTIONS, AMBER, SKY

# Offline updates before 0, online updates after it; each phase has length 1
TIMES = np.linspace(-1.0, 1.0, 401)
ONLINE = TIMES >= 0


def batches(axes: Axes, new: np.ndarray) -> None:
    """The composition of a batch over time: the share of the environment's steps, above the data's."""
    pen.shade(axes, TIMES, 0.0 * TIMES, 1.0 + 0.0 * TIMES, BLUE)
    pen.shade(axes, TIMES[ONLINE], 1.0 - new[ONLINE], 1.0, ORANGE)
    pen.label(axes, -0.5, 0.5, "data", INK)
    pen.plain(axes, "", "batch")
    axes.set(xlim=(-1, 1), ylim=(0, 1))


def switches(above: Axes, *others: Axes) -> None:
    """Draws the line between the phases, with their names above the first panel."""
    for axes in (above, *others):
        pen.upright(axes, 0.0)
    for x, name in ((-0.5, "offline"), (0.5, "online")):
        pen.label(above, x, 1.12, name, transform=above.get_xaxis_transform())


def finetune_acfql(figure: Figure) -> None:
    """Paths from one state, with an action chosen in each step, or with five actions chosen at once."""
    left, right = pen.panels(figure, 2.9, columns=2)
    rng, steps, paths = np.random.default_rng(185), 20, 7
    drawn = rng.choice([-1.0, 1.0], (paths, steps)) * rng.uniform(0.5, 1.0, (paths, steps))
    for axes, length, colour in ((left, 1, SKY), (right, 5, AMBER)):
        chosen = np.repeat(drawn[:, : steps // length], length, axis=1)
        for path in np.concatenate([np.zeros((paths, 1)), chosen.cumsum(axis=1)], axis=1):
            pen.curve(axes, np.arange(steps + 1), path, colour, lw=1.2)
            for step in range(0, steps, length):
                pen.point(axes, step, path[step], colour, size=3 if length == 1 else 6)
        axes.set(xlim=(-0.8, steps + 0.8), ylim=(-13, 13))
    pen.plain(left, "a choice in each step", "position")
    pen.plain(right, "a choice for five steps")


def finetune_awac(figure: Figure) -> None:
    """An update before the switch and one after it: first on the data, then also on the policy's own steps."""
    axes = pen.drawing(figure, (9.6, 4.2))
    size = (2.5, 0.9)
    for x, rows, update in ((1.4, "data", "update"), (5.0, "data + steps", "same update")):
        pen.named(axes, (x, 2.6), size, rows, BLUE)
        pen.named(axes, (x, 0.8), size, update, GREEN)
        arrow(axes, (x, 2.15), (x, 1.25))
    pen.named(axes, (8.3, 2.6), size, "environment", ORANGE)
    pen.named(axes, (8.3, 0.8), size, "policy acts", ORANGE)
    arrow(axes, (6.25, 0.8), (7.05, 0.8))
    arrow(axes, (8.3, 1.25), (8.3, 2.15))
    arrow(axes, (7.05, 2.6), (6.25, 2.6))
    pen.upright(axes, 3.2)
    pen.label(axes, 1.4, 3.7, "offline")
    pen.label(axes, 6.65, 3.7, "online")


def finetune_fql(figure: Figure) -> None:
    """The data that the flow imitates, and the policy, which prefers larger values, before the switch and later."""
    offline, online = pen.panels(figure, 2.8, columns=2)
    data, lean, q = np.array([-0.52, -0.34]), 0.26, 1.2 + 0.9 * ACTIONS
    tried = np.array([-0.14, 0.06, 0.26, 0.46])
    for axes, steps in ((offline, np.array([])), (online, tried)):
        flow = density(np.concatenate([data, steps]), 0.15)
        pen.curve(axes, ACTIONS, q, GREY, lw=1.2)
        pen.curve(axes, ACTIONS, flow / flow.max(), SKY)
        pen.curve(axes, ACTIONS + lean, flow / flow.max(), AMBER)
        pen.ticks(axes, data)
        pen.ticks(axes, steps, colour=AMBER)
        pen.plain(axes, "action")
        axes.set(xlim=(-1, 1), ylim=(0, 2.3))
        pen.label(axes, 0.72, 2.1, "Q")
    for axes, name in ((offline, "offline"), (online, "online")):
        pen.label(axes, 0.5, 1.08, name, transform=axes.transAxes)
    pen.label(offline, -0.62, 1.2, "flow", SKY)
    pen.label(offline, 0.14, 1.0, "policy", AMBER)
    pen.label(offline, -0.84, 0.22, "data")
    pen.label(online, 0.16, 0.32, "steps", AMBER)


def finetune_ifql(figure: Figure) -> None:
    """The flow and its best sample, before the switch, and after such samples have joined the data."""
    offline, online = pen.panels(figure, 2.8, columns=2)
    data, q = np.array([-0.52, -0.4, -0.28]), 1.5 + 0.5 * ACTIONS
    tried = np.array([-0.12, -0.02, 0.1, 0.2, 0.32])
    for axes, steps in ((offline, np.array([])), (online, tried)):
        flow = density(np.concatenate([data, steps]), 0.15)
        samples = np.interp((0.1, 0.3, 0.5, 0.7, 0.97), np.cumsum(flow), ACTIONS)
        values = np.interp(samples, ACTIONS, q)
        pen.curve(axes, ACTIONS, 0.9 * flow / flow.max(), SKY)
        pen.curve(axes, ACTIONS, q, GREY, lw=1.2)
        for sample, value in zip(samples[:-1], values[:-1], strict=True):
            pen.point(axes, sample, value, SKY, size=6)
        pen.point(axes, samples[-1], values[-1], AMBER, "*", 16)
        pen.ticks(axes, data)
        pen.ticks(axes, steps, colour=AMBER)
        pen.plain(axes, "action")
        axes.set(xlim=(-1, 1), ylim=(0, 2.3))
        pen.label(axes, 0.82, 2.08, "Q")
    for axes, name in ((offline, "offline"), (online, "online")):
        pen.label(axes, 0.5, 1.08, name, transform=axes.transAxes)
    pen.label(offline, 0.06, 0.62, "flow", SKY)
    pen.label(offline, -0.52, 1.58, "samples", SKY)
    pen.label(offline, 0.0, 1.82, "best", AMBER)
    pen.label(offline, 0.1, 0.2, "data")
    pen.label(online, 0.8, 0.2, "steps", AMBER)


def finetune_iql(figure: Figure) -> None:
    """The share of new steps in a batch, and the policy's learning rate."""
    above, below = pen.panels(figure, 3.3, rows=2)
    batches(above, np.maximum(TIMES, 0.0) / (1.0 + np.maximum(TIMES, 0.0)))
    pen.label(above, 0.78, 0.82, "steps", INK)
    pen.curve(below, TIMES, np.sin(np.pi / 2.0 * TIMES) ** 2, AMBER)
    pen.plain(below, "updates", "policy's\nlearning rate")
    below.set(xlim=(-1, 1), ylim=(0, 1.1))
    switches(above, below)


def finetune_cql(figure: Figure) -> None:
    """The critic at the switch, and after the policy's own steps have joined the data."""
    (axes,) = pen.panels(figure, 2.8)
    tried = np.array([0.36, 0.42, 0.47, 0.5, 0.55, 0.6, 0.66])
    for data, colour in ((MIDDLE, GREY), (np.append(MIDDLE, tried), AMBER)):
        q = conservative(density(data), TARGETS, PUSH)
        pen.curve(axes, ACTIONS, q, colour)
        best(axes, q, colour)
    pen.ticks(axes, MIDDLE)
    pen.ticks(axes, tried, colour=AMBER)
    pen.plain(axes, "action", "Q")
    axes.set_ylim(-2.1, 2.9)
    pen.label(axes, 0.28, 0.6, "offline", ha="right")
    pen.label(axes, 0.35, 2.45, "online", AMBER, ha="right")
    pen.label(axes, -0.4, -1.8, "data", ha="right")
    pen.label(axes, 0.7, -1.8, "steps", AMBER, ha="left")


def finetune_cal_ql(figure: Figure) -> None:
    """A critic without a conservative term, CQL's, and Cal-QL's, which has the data's return as a lower bound."""
    (axes,) = pen.panels(figure, 2.8)
    sampled, weight = np.array([0.48, 0.52, 0.55, 0.58, 0.61, 0.65]), density(MIDDLE)
    earned = float(weight @ TARGETS)
    pen.curve(axes, ACTIONS, fitted(weight, TARGETS), GREY, lw=1.2, ls="--")
    for floor, colour in ((-np.inf, GREY), (earned, AMBER)):
        pen.curve(axes, ACTIONS, conservative(weight, TARGETS, PUSH, floor, density(sampled)), colour)
    pen.level(axes, earned, SKY)
    pen.ticks(axes, MIDDLE)
    pen.ticks(axes, sampled, colour=AMBER)
    pen.plain(axes, "action", "Q")
    axes.set_ylim(-2.9, 3.3)
    pen.label(axes, -0.98, earned + 0.35, "the data's return", SKY, ha="left")
    pen.label(axes, 0.98, earned + 0.35, "Cal-QL", AMBER, ha="right")
    pen.label(axes, 0.52, 0.0, "CQL", ha="right")
    pen.label(axes, -0.4, -2.55, "data", ha="right")
    pen.label(axes, 0.7, -2.55, "policy", AMBER, ha="left")


def finetune_rebrac(figure: Figure) -> None:
    """Half of each batch is new in the online phase; one distance's weight decays, and the other's is 0."""
    above, below = pen.panels(figure, 3.3, rows=2, height_ratios=(1.0, 1.4))
    batches(above, np.where(ONLINE, 0.5, 0.0))
    pen.label(above, 0.5, 0.75, "steps", INK)
    pen.label(above, 0.5, 0.25, "data", INK)
    pen.curve(below, TIMES, np.where(ONLINE, np.maximum(0.5, 1.0 - TIMES), 1.0), AMBER)
    pen.curve(below, TIMES[~ONLINE], 0.6 + 0.0 * TIMES[~ONLINE], SKY)
    pen.curve(below, TIMES[ONLINE], 0.0 * TIMES[ONLINE], SKY)
    pen.label(below, -0.5, 0.86, "β₁ of the policy", AMBER)
    pen.label(below, -0.5, 0.46, "β₂ of the target", SKY)
    pen.plain(below, "updates", "weight")
    below.set(xlim=(-1, 1), ylim=(-0.04, 1.15))
    switches(above, below)


def finetune_spot(figure: Figure) -> None:
    """The weight over three phases, and the policy's action with the full weight and with the cooled one."""
    above, below = pen.panels(figure, 3.8, rows=2, height_ratios=(1.0, 1.5))
    pen.curve(above, TIMES, np.minimum(1.0, np.maximum(0.2, 1.0 - TIMES)), AMBER)
    for start in (-1.0, 0.0):
        pen.upright(above, start)
    for x, name in ((-1.3, "VAE"), (-0.5, "offline"), (0.5, "online")):
        pen.label(above, x, 1.12, name, transform=above.get_xaxis_transform())
    pen.plain(above, "updates", "λ")
    above.set(xlim=(-1.6, 1), ylim=(0, 1.15))
    q, unlikely = rising(density(DATA)), -np.log(density(DATA, 0.25))
    pen.curve(below, ACTIONS, q, SKY)
    for share, name in ((1.0, "whole λ"), (0.2, "cooled λ")):
        place = held_back(q, share * 0.25 * unlikely, 1.0)
        pen.point(below, ACTIONS[place], q[place], AMBER, "*", 16)
        pen.label(below, ACTIONS[place] - 0.05, q[place] + 0.22, name, AMBER, ha="right")
    pen.ticks(below, DATA)
    pen.plain(below, "action", "Q")
    pen.label(below, -0.02, q[0] + 0.02, "data's actions", ha="left")


def finetune_balanced_replay(figure: Figure) -> None:
    """The densities of data and steps, their ratio, and the data's rows with heights equal to their probabilities."""
    above, below = pen.panels(figure, 3.6, rows=2, height_ratios=(1.4, 1.0))
    data = np.array([-0.72, -0.6, -0.5, -0.38, -0.28, -0.16, -0.04, 0.1, 0.22])
    steps = np.array([0.1, 0.22, 0.32, 0.42, 0.52, 0.64])
    old, new = density(data, 0.2), density(steps, 0.2)
    ratio = new / (new + old)
    highest = max(old.max(), new.max())
    pen.curve(above, ACTIONS, old / highest, SKY)
    pen.curve(above, ACTIONS, new / highest, AMBER)
    pen.curve(above, ACTIONS, ratio, GREY, lw=1.4, ls="--")
    pen.plain(above, "", "density")
    above.set(xlim=(-1, 1), ylim=(0, 1.3))
    pen.label(above, -0.55, 1.02, "data", SKY)
    pen.label(above, 0.36, 1.16, "steps", AMBER)
    pen.label(above, 0.86, 0.82, "ratio")
    chances = np.interp(data, ACTIONS, ratio)
    pen.plain(below, "action", "priority")
    below.vlines(pen.rounded(data), 0.0, pen.rounded(chances + 0.03), color=SKY, lw=5)
    below.vlines(pen.rounded(steps + 0.02), 0.0, pen.rounded(np.interp(steps, ACTIONS, ratio)), color=AMBER, lw=5)
    below.set(xlim=(-1, 1), ylim=(0, 1.1))
    pen.label(below, -0.55, 0.5, "rarely drawn", SKY)


def finetune_rlpd(figure: Figure) -> None:
    """The minibatches of an update, each half from either source, and the networks that learn from them."""
    axes = pen.drawing(figure, (9.6, 3.3))
    for number, x in enumerate((1.6, 4.6, 7.6)):
        for row in range(6):
            place = x - 0.875 + 0.35 * row
            pen.named(axes, (place, 2.4), (0.35, 0.7), "", (BLUE, ORANGE)[row % 2])
        pen.named(axes, (x, 0.8), (2.1, 0.7), ("critics", "critics", "critics, policy")[number], GREEN)
        arrow(axes, (x, 2.05), (x, 1.15))
        if number:
            arrow(axes, (x - 1.95, 0.8), (x - 1.05, 0.8))
    pen.label(axes, 4.6, 3.05, "minibatches of data and steps, in turn")
    pen.label(axes, 4.6, 0.15, "gradient steps")
