"""Sketches of pessimistic critics, and of soft actor-critic's entropy bonus."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from boxes import GREY
from sketching import pen
from sketching.critics import conservative, density, ensemble, fitted
from sketching.pen import ACTIONS, AMBER, SIZE, SKY

# Data in the middle of the actions, and the values that critics learn there
MIDDLE = np.array([-0.36, -0.3, -0.22, -0.16, -0.1, -0.05, 0.02, 0.08, 0.15, 0.23, 0.31])
TARGETS = 1.2 + 1.6 * np.tanh(1.2 * ACTIONS)
# The weight of the conservative term
PUSH = 0.03


def best(axes: Axes, q: np.ndarray, colour: str) -> None:
    """Marks a critic's maximum with a star."""
    pen.point(axes, ACTIONS[np.argmax(q)], q.max(), colour, "*", 16)


def cql(figure: Figure) -> None:
    """A critic trained on the squared error alone, and one trained with the conservative term too."""
    (axes,) = pen.panels(figure, 2.8)
    weight = density(MIDDLE)
    before, after = fitted(weight, TARGETS), conservative(weight, TARGETS, PUSH)
    for q, colour in ((before, GREY), (after, AMBER)):
        pen.curve(axes, ACTIONS, q, colour)
        best(axes, q, colour)
    pen.pull(axes, (ACTIONS[185], before[185]), (ACTIONS[185], after[185]), AMBER)
    pen.ticks(axes, MIDDLE)
    pen.plain(axes, "action", "Q")
    axes.set_ylim(-2.1, 3.3)
    pen.label(axes, 0.88, before[-1], "squared error alone", ha="right")
    pen.label(axes, 0.0, 0.0, "with the\nconservative term", AMBER)
    pen.label(axes, 0.36, -1.85, "data's actions", ha="left")


def sac_n(figure: Figure) -> None:
    """Critics that agree only on the data, and their minimum."""
    (axes,) = pen.panels(figure, 2.9)
    q = ensemble(MIDDLE, np.interp(MIDDLE, ACTIONS, TARGETS), 10)
    least = q.min(axis=0)
    for one in q:
        pen.curve(axes, ACTIONS, one, GREY, lw=1.1, alpha=0.8)
    pen.curve(axes, ACTIONS, least, AMBER, lw=2.8)
    best(axes, least, AMBER)
    pen.ticks(axes, MIDDLE)
    pen.plain(axes, "action", "Q")
    pen.label(axes, -0.2, q.max(), "ten critics")
    pen.label(axes, 0.02, 0.5 * (least.min() + least.max()), "the least of them", AMBER)


def diversified(angles: np.ndarray) -> np.ndarray:
    """Directions in the plane after gradient steps on the diversity term."""
    for _ in range(2000):
        apart = angles[:, None] - angles
        angles = angles + 0.02 * np.sin(apart).sum(axis=1) / (len(angles) - 1)
    return angles


def edac(figure: Figure) -> None:
    """The critics' slopes at a data action: similar ones, and after training with the diversity term."""
    alike = np.pi / 4 + np.linspace(-0.75, 0.75, 6) + 0.1 * np.sin(5.0 * np.arange(6))
    grid = np.linspace(-1.0, 1.0, 241)
    places = np.stack(np.meshgrid(grid, grid), axis=-1)
    left, right = pen.panels(figure, 2.6, columns=2)
    for axes, angles, title in ((left, alike, "slopes alike"), (right, diversified(alike), "slopes apart")):
        slopes = np.stack([np.cos(angles), np.sin(angles)])
        least = np.where((places**2).sum(axis=-1) < 0.95, (places @ slopes).min(axis=-1), -1.0)
        axes.contourf(grid, grid, pen.rounded(least), levels=[0.0, 2.0], colors=[AMBER], alpha=0.35)
        for slope in slopes.T:
            pen.pull(axes, (0.0, 0.0), 0.95 * slope, SKY, shrinkA=0, shrinkB=0)
        pen.point(axes, 0.0, 0.0, GREY)
        axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
        axes.set_axis_off()
        axes.set_title(title, color=GREY, fontsize=SIZE)
    pen.label(left, -0.1, -0.45, "every critic\nrises here", AMBER)


def adam(batch: int, rate: float, updates: int, every: int) -> np.ndarray:
    """The distance of Adam from a bowl's optimum, with gradients that are noisier in smaller batches."""
    rng = np.random.default_rng(0)
    x, first, second, found = np.ones(100), np.zeros(100), np.zeros(100), []
    for step in range(1, updates + 1):
        gradient = x + 8.0 / np.sqrt(batch) * rng.normal(size=100)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        x = x - rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        if step % every == 0:
            found.append(float(np.sqrt((x**2).mean())))
    return np.array([1.0, *found])


def lb_sac(figure: Figure) -> None:
    """A problem with noisy gradients: small batches, the same with a high rate, and large batches with that rate."""
    (axes,) = pen.panels(figure, 2.9)
    updates, every = 12_000, 50
    for batch, rate, colour, x, y in (
        (256, "3e-4", GREY, 6400, -0.65),
        (256, "1.8e-3", SKY, 4300, -1.47),
        (10_000, "1.8e-3", AMBER, 5600, -2.35),
    ):
        errors = adam(batch, float(rate), updates, every)
        pen.curve(axes, np.arange(0, updates + 1, every), np.log10(errors), colour, lw=1.8)
        pen.label(axes, x, y, f"{batch:,} rows, {rate}", colour)
    pen.plain(axes, "updates", "error (log)")
    axes.set_ylim(-2.5, 0.1)


def squashed(q: np.ndarray, alpha: float) -> np.ndarray:
    """The density at `ACTIONS` of the squashed Gaussian with the highest sum of value and entropy at a temperature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    mean, std = (axis[..., None] for axis in np.meshgrid(np.linspace(-2, 2, 161), np.geomspace(0.03, 2.0, 80)))
    u = mean + std * nodes
    values = np.interp(np.tanh(u), ACTIONS, q)
    entropy = np.log(std) + np.log(1.0 - np.tanh(u) ** 2 + 1e-6)
    where = np.unravel_index(((values + alpha * entropy) @ weights).argmax(), mean.shape[:2])
    mean, std = mean[where], std[where]
    inner = ACTIONS[1:-1]
    chances = np.exp(-0.5 * ((np.arctanh(inner) - mean) / std) ** 2) / (std * (1.0 - inner**2) * np.sqrt(2.0 * np.pi))
    return np.array([0.0, *chances, 0.0])


def sac(figure: Figure) -> None:
    """A critic above, and below it the policies of two temperatures with the greedy action."""
    above, below = pen.panels(figure, 3.3, rows=2, height_ratios=(1.0, 1.4))
    q = 1.0 / (1.0 + 6.0 * (ACTIONS - 0.2) ** 2)
    pen.curve(above, ACTIONS, q, GREY)
    for alpha, colour in ((0.03, SKY), (0.3, AMBER)):
        chances = squashed(q, alpha)
        pen.shade(below, ACTIONS, 0.0 * ACTIONS, chances, colour, alpha=0.25)
        pen.curve(below, ACTIONS, chances, colour)
    for axes in (above, below):
        pen.upright(axes, ACTIONS[np.argmax(q)])
    pen.label(above, 0.24, 0.25, "greedy action", ha="left")
    pen.label(below, 0.1, 2.8, "low temperature", SKY, ha="right")
    pen.label(below, -0.2, 1.0, "high temperature", AMBER, ha="right")
    pen.plain(above, "", "Q")
    pen.plain(below, "action", "policy")


def uwac(figure: Figure) -> None:
    """Passes of a critic with dropout above, and below the weight that results from their variance."""
    above, below = pen.panels(figure, 3.6, rows=2, height_ratios=(1.6, 1.0))
    q = ensemble(MIDDLE, np.interp(MIDDLE, ACTIONS, TARGETS), 12)
    for one in q:
        pen.curve(above, ACTIONS, one, GREY, lw=1.1, alpha=0.8)
    pen.curve(above, ACTIONS, q.mean(axis=0), SKY)
    weight = np.exp(-0.5 * q.var(axis=0, ddof=1))
    pen.shade(below, ACTIONS, 0.0 * ACTIONS, weight, AMBER, alpha=0.25)
    pen.curve(below, ACTIONS, weight, AMBER)
    pen.ticks(above, MIDDLE)
    pen.plain(above, "", "Q")
    pen.plain(below, "action", "weight")
    above.set_xlim(-1.05, 1.05)
    below.set_xlim(-1.05, 1.05)
    below.set_ylim(0.0, 1.12)
    pen.label(above, -0.62, q.max(), "one pass each")
    pen.label(above, 0.62, q.mean(axis=0)[160] - 1.7, "their mean", SKY)
