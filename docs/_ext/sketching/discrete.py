"""Sketches of the algorithms that choose one of finitely many actions."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sketching import pen
from sketching.pen import ACTIONS, AMBER, GREY, SKY

# The data's shares of six actions, and the values that Q-learning alone gives them
SHARES = np.array([0.3, 0.42, 0.21, 0.02, 0.03, 0.02])
VALUES = np.array([0.42, 0.5, 0.62, 0.3, 0.86, 0.74])
PLACES = np.arange(len(SHARES))


def bars(axes: Axes, heights: np.ndarray, colours: list[str], width: float = 0.55, shift: float = 0.0) -> None:
    """Draws a bar for each action."""
    for place, height, colour in zip(PLACES, heights, colours, strict=True):
        edges = np.array([place - width / 2, place + width / 2]) + shift
        pen.shade(axes, edges, np.zeros(2), np.full(2, height), colour, alpha=0.75)


def star(axes: Axes, place: float, height: float, colour: str) -> None:
    """Marks the selected action."""
    pen.point(axes, place, height + 0.06, colour, "*", 14)


def discrete_cql(figure: Figure) -> None:
    """Values of six actions, three of them missing in the data: from Q-learning, and with the conservative term."""
    (axes,) = pen.panels(figure, 2.8)
    pushed = np.exp(5.0 * VALUES) / np.exp(5.0 * VALUES).sum() - SHARES
    lowered = VALUES - 0.9 * pushed
    bars(axes, VALUES, [GREY] * 6, 0.34, -0.19)
    bars(axes, lowered, [AMBER] * 6, 0.34, 0.19)
    for values, shift, colour in ((VALUES, -0.19, GREY), (lowered, 0.19, AMBER)):
        best = int(np.argmax(values))
        star(axes, best + shift, values[best], colour)
    for place in PLACES[SHARES > 0.1]:
        pen.label(axes, place, -0.07, "data", SKY)
    pen.label(axes, 0.1, 0.98, "squared error alone", ha="left")
    pen.label(axes, 0.1, 0.86, "with the conservative term", AMBER, ha="left")
    pen.plain(axes, "action", "Q")
    axes.set(ylim=(-0.14, 1.06), xlim=(-0.6, 5.6))


def discrete_bcq(figure: Figure) -> None:
    """The probabilities of six actions, and their values: the best action above the threshold is selected."""
    likely, valued = pen.panels(figure, 3.6, rows=2, height_ratios=[1, 1.2])
    share = SHARES / SHARES.max()
    kept = share > 0.3
    colours = [SKY if each else GREY for each in kept]
    bars(likely, share, colours)
    pen.level(likely, 0.3, AMBER)
    pen.label(likely, 5.5, 0.42, "threshold", AMBER, ha="right")
    pen.plain(likely, "", "likelihood")
    bars(valued, VALUES, colours)
    best = int(np.argmax(np.where(kept, VALUES, -np.inf)))
    star(valued, best, VALUES[best], AMBER)
    pen.plain(valued, "action", "Q")
    for axes in (likely, valued):
        axes.set(ylim=(0.0, 1.1), xlim=(-0.6, 5.6))


def discrete_iql(figure: Figure) -> None:
    """V among the values of the data's actions; below, the data's shares and the policy that weights them."""
    valued, likely = pen.panels(figure, 3.6, rows=2, height_ratios=[1, 1.2])
    held = np.where(SHARES > 0.1, SHARES, 0.0)
    bars(valued, VALUES, [SKY if share else GREY for share in held])
    pen.level(valued, 0.56, AMBER)
    pen.label(valued, -0.5, 0.68, "V", AMBER, ha="left")
    pen.plain(valued, "", "Q")
    weighted = held * np.exp(9.0 * (VALUES - 0.56))
    bars(likely, held, [SKY] * 6, 0.34, -0.19)
    bars(likely, weighted / weighted.sum(), [AMBER] * 6, 0.34, 0.19)
    pen.label(likely, 5.5, 0.72, "the data", SKY, ha="right")
    pen.label(likely, 5.5, 0.54, "the policy", AMBER, ha="right")
    pen.plain(likely, "action", "share")
    for axes in (valued, likely):
        axes.set(ylim=(0.0, 1.0), xlim=(-0.6, 5.6))


def discrete_sac(figure: Figure) -> None:
    """Values of six actions, and below their probabilities under two temperatures."""
    valued, likely = pen.panels(figure, 3.6, rows=2, height_ratios=[1, 1.2])
    bars(valued, VALUES, [GREY] * 6)
    pen.plain(valued, "", "Q")
    for temp, shift, colour in ((0.08, -0.19, SKY), (0.8, 0.19, AMBER)):
        weights = np.exp(VALUES / temp)
        bars(likely, weights / weights.sum(), [colour] * 6, 0.34, shift)
    pen.label(likely, -0.4, 0.86, "low temperature", SKY, ha="left")
    pen.label(likely, -0.4, 0.68, "high temperature", AMBER, ha="left")
    pen.plain(likely, "action", "policy")
    for axes in (valued, likely):
        axes.set(ylim=(0.0, 1.0), xlim=(-0.6, 5.6))


def discrete_bc(figure: Figure) -> None:
    """The probabilities of three actions over one state dimension, with the data's actions below."""
    (axes,) = pen.panels(figure, 2.7)
    logits = np.stack([-5.0 * (ACTIONS + 0.25), 0.9 - 2.2 * (ACTIONS - 0.1) ** 2, 6.0 * (ACTIONS - 0.42)])
    chances = np.exp(logits) / np.exp(logits).sum(axis=0)
    for chance, colour in zip(chances, (SKY, GREY, AMBER), strict=True):
        pen.curve(axes, ACTIONS, chance, colour)
    places = np.linspace(0.03, 0.97, 24)
    states = np.interp(places, np.linspace(0.0, 1.0, len(ACTIONS)), ACTIONS)
    taken = np.argmax([np.interp(states, ACTIONS, chance) for chance in chances], axis=0)
    for action, colour in enumerate((SKY, GREY, AMBER)):
        pen.ticks(axes, states[taken == action], colour=colour)
    for x, text, colour in ((-0.72, "left", SKY), (0.1, "stay", GREY), (0.75, "right", AMBER)):
        pen.label(axes, x, 1.06, text, colour)
    pen.plain(axes, "state", "chance")
    axes.set_ylim(0.0, 1.14)
