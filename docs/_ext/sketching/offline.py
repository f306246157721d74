"""Sketches of ways to keep a policy close to the data."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxes import BLUE, GREEN, GREY, ORANGE, PALE, arrow
from corl_torch.diffusion_ql import diffusion
from shared.data.hdf5 import read_arrays
from shared.data.rewards import pieces
from shared.data.transitions import extract_transitions
from sketching import pen
from sketching.critics import density, fitted, held_back
from sketching.pen import ACTIONS, AMBER, SIZE, SKY

MINI = Path(__file__).resolve().parents[3] / "datasets" / "mini" / "hopper-medium-expert.hdf5"
COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
# The data's actions in a state
DATA = np.array([-0.78, -0.7, -0.64, -0.6, -0.55, -0.5, -0.47, -0.42, -0.36, -0.3, -0.22, -0.12])


def rising(weight: np.ndarray) -> np.ndarray:
    """A critic that rises on the data, and continues to rise beyond it."""
    return fitted(weight, 0.9 + 0.9 * np.tanh(2.0 * (ACTIONS + 0.5)))


def any_percent_bc(figure: Figure) -> None:
    """The bundled data's trajectories by return, with the best tenth marked."""
    (axes,) = pen.panels(figure, 2.3)
    data = extract_transitions(read_arrays(MINI, COLUMNS))
    returns = np.sort([data.rewards[piece].sum(dtype=float) for piece in pieces(data.terminals)])
    kept = max(1, int(0.1 * len(returns)))
    places = np.arange(len(returns))
    for rows, colour in ((places[:-kept], GREY), (places[-kept:], AMBER)):
        axes.bar(rows, pen.rounded(returns[rows]), 0.7, color=colour, alpha=0.55 if colour == GREY else 1.0)
    pen.plain(axes, "trajectories, from worst to best", "return")
    axes.set_ylim(0, 1.32 * returns[-1])
    pen.label(axes, places[-kept // 2], 1.17 * returns[-1], "cloned", AMBER)
    pen.label(axes, 0.36 * len(returns), 0.65 * returns[-1], "left out")


def awac(figure: Figure) -> None:
    """The data's actions by value above, and by weight below."""
    above, below = pen.panels(figure, 3.5, rows=2, height_ratios=(1.5, 1.0))
    actions = np.array([-0.86, -0.68, -0.52, -0.33, -0.15, 0.05, 0.22, 0.41, 0.6, 0.8])

    def q(action: Any) -> Any:
        return 1.1 * np.exp(-8.0 * (action - 0.3) ** 2) + 0.35 * np.sin(3.0 * action + 0.5)

    own = -0.42
    pen.curve(above, ACTIONS, q(ACTIONS), GREY, lw=1.6)
    pen.level(above, q(own), SKY)
    for action in actions:
        advantage = q(action) - q(own)
        colour = AMBER if advantage > 0 else GREY
        pen.point(above, action, q(action), colour)
        below.bar(pen.rounded(action), pen.rounded(np.exp(advantage / 0.6)), 0.07, color=colour)
    pen.point(above, own, q(own), SKY, "D")
    pen.label(above, 0.33, q(own) - 0.2, "the policy's own action", SKY)
    pen.label(above, -0.15, 1.1, "data's actions", AMBER, ha="right")
    pen.label(below, -0.55, 6.0, "exp(advantage / λ)")
    pen.plain(above, "", "Q")
    pen.plain(below, "action", "weight")
    above.set_ylim(-0.55, 1.55)
    for axes in (above, below):
        axes.set_xlim(-1.05, 1.05)


def awr(figure: Figure) -> None:
    """The share of each k-step return in TD(lambda), and the weight of an action by its advantage."""
    left, right = pen.panels(figure, 2.8, columns=2)
    lam, steps = 0.7, np.arange(6)
    shares = (1.0 - lam) * lam**steps
    shares[-1] = lam ** steps[-1]
    for step, share in zip(steps, shares, strict=True):
        left.bar(step + 1, pen.rounded(share), 0.7, color=AMBER if step == steps[-1] else SKY)
    pen.label(left, 3.2, 0.265, "λ = 0.7")
    pen.label(left, 5.6, 0.225, "the\nrest", AMBER)
    pen.plain(left, "transitions until V", "share of the return")
    left.set_ylim(0.0, 0.32)
    advantages = np.linspace(-2.5, 4.2, 201)
    chances = np.exp(-0.5 * advantages**2)
    pen.shade(right, advantages, 0.0 * chances, 7.0 * chances, GREY, alpha=0.3)
    pen.curve(right, advantages, np.minimum(np.exp(advantages), 20.0), AMBER)
    pen.level(right, 20.0)
    pen.label(right, -0.6, 21.6, "cap")
    pen.label(right, -0.2, 9.0, "data's actions")
    pen.plain(right, "advantage, normalised", "weight")
    right.set_ylim(0.0, 24.0)


def td3_bc(figure: Figure) -> None:
    """A critic that keeps rising, its best action, and the policy that the data holds back."""
    (axes,) = pen.panels(figure, 2.7)
    q = rising(density(DATA))
    best = held_back(q, ((ACTIONS[:, None] - DATA) ** 2).mean(axis=1), 2.5)
    pen.curve(axes, ACTIONS, q, SKY)
    pen.ticks(axes, DATA)
    pen.plain(axes, "action", "Q")
    pen.point(axes, 1.0, q[-1], GREY, "*", 16)
    pen.point(axes, ACTIONS[best], q[best], AMBER, "*", 16)
    pen.pull(axes, (1.0, q[best]), (ACTIONS[best] + 0.04, q[best]), AMBER)
    pen.label(axes, 0.93, q[-1] + 0.1, "greedy", GREY, ha="right")
    pen.label(axes, ACTIONS[best] - 0.06, q[best] + 0.2, "TD3+BC", AMBER, ha="right")
    pen.label(axes, -0.02, q[0] + 0.02, "data's actions", ha="left")


def prdc(figure: Figure) -> None:
    """Rows by state and action, a policy far from them, and the nearest row to one of its actions."""
    (axes,) = pen.panels(figure, 3.0)
    beta = 2.0
    states = np.array([-0.92, -0.74, -0.55, -0.38, -0.2, -0.06, 0.1, 0.22, 0.4, 0.58, 0.75, 0.9])
    actions = np.array([-0.5, -0.35, -0.62, -0.1, 0.12, -0.28, 0.4, 0.05, 0.3, 0.55, 0.35, 0.6])
    policy = 0.75 + 0.12 * np.sin(2.5 * ACTIONS)
    state = 0.16
    action = float(np.interp(state, ACTIONS, policy))
    nearest = int(np.argmin((beta * (states - state)) ** 2 + (actions - action) ** 2))
    pen.curve(axes, ACTIONS, policy, SKY)
    for x, y in zip(states, actions, strict=True):
        pen.point(axes, x, y, GREY, size=5)
    pen.upright(axes, state)
    pen.point(axes, state, action, SKY)
    pen.point(axes, states[nearest], actions[nearest], AMBER)
    pen.pull(axes, (state, action), (state, actions[nearest] + 0.02), AMBER)
    pen.label(axes, -0.6, 0.78, "policy", SKY)
    pen.label(axes, states[nearest] - 0.06, actions[nearest], "nearest row", AMBER, ha="right")
    pen.label(axes, state + 0.03, -0.68, "this state's own row", GREY, ha="left")
    pen.point(axes, state, -0.62, GREY, size=5)
    pen.plain(axes, "state", "action")
    axes.set_ylim(-0.8, 1.05)


def plas(figure: Figure) -> None:
    """The decoded action of each code, and its value; the policy's range ends at 2."""
    above, below = pen.panels(figure, 3.8, rows=2)
    codes = np.linspace(-3.0, 3.0, 241)
    actions = -0.45 + 0.34 * np.tanh(0.7 * codes)
    q = np.interp(actions, ACTIONS, rising(density(DATA)))
    within = abs(codes) <= 2.0
    for axes, values, colour in ((above, actions, SKY), (below, q, AMBER)):
        pen.curve(axes, codes, values, GREY, lw=1.2, ls="--")
        pen.curve(axes, codes[within], values[within], colour)
        for bound in (-2.0, 2.0):
            pen.upright(axes, bound)
        axes.set_xlim(-3, 3)
    for action in DATA:
        pen.point(above, -2.85, action, GREY, size=4)
    best = int(np.argmax(np.where(within, q, -np.inf)))
    pen.point(below, codes[best], q[best], AMBER, "*", 16)
    pen.plain(above, "", "action")
    pen.plain(below, "code", "Q")
    above.set_ylim(-1, 0.15)
    pen.label(above, -2.7, -0.3, "data's\nactions", ha="left")
    pen.label(above, 1.85, -0.5, "decoder", SKY, ha="right")
    pen.label(below, 1.8, q[best] + 0.03, "PLAS", AMBER, ha="right")


def bcq(figure: Figure) -> None:
    """Samples among the data's actions, the range of the perturbation around them, and the best action in it."""
    above, below = pen.panels(figure, 3.8, rows=2, height_ratios=(1.0, 1.6))
    weight = density(DATA)
    chances, q = weight / weight.max(), rising(weight)
    samples, reach = np.array([-0.74, -0.61, -0.5, -0.41, -0.27]), 0.05
    pen.shade(above, ACTIONS, 0.0 * ACTIONS, chances, GREY, alpha=0.3)
    pen.curve(below, ACTIONS, q, GREY, lw=1.6)
    for sample in samples:
        pen.curve(above, [sample - reach, sample + reach], [-0.25, -0.25], SKY, lw=5.0)
        near = abs(ACTIONS - sample) <= reach
        pen.curve(below, ACTIONS[near], q[near], SKY, lw=4.0)
    best = samples[-1] + reach
    pen.point(below, best, np.interp(best, ACTIONS, q), AMBER, "*", 16)
    pen.ticks(above, DATA)
    pen.plain(above, "", "density")
    pen.plain(below, "action", "Q")
    above.set_ylim(-0.6, 1.2)
    for axes in (above, below):
        axes.set_xlim(-1.05, 1.05)
    pen.label(above, -0.05, 0.7, "data's actions", ha="left")
    pen.label(above, -0.05, -0.25, "samples", SKY, ha="left")
    pen.label(below, best + 0.07, np.interp(best, ACTIONS, q) - 0.12, "BCQ", AMBER, ha="left")


def bear(figure: Figure) -> None:
    """Three policies with the data's actions, each with its MMD for BEAR's kernel."""
    above, below = pen.panels(figure, 3.8, rows=2, height_ratios=(1.6, 1.0))
    policies = ((0.5, 0.18, GREY, "beside"), (-0.45, 0.19, SKY, "on the data"), (-0.62, 0.06, AMBER, "narrow"))
    quantiles = (np.arange(12) + 0.5) / 12

    def alike(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.exp(-abs(x[:, None] - y) / 0.5).mean())

    weight = density(DATA)
    pen.shade(above, ACTIONS, 0.0 * ACTIONS, weight / weight.max(), GREY, alpha=0.3)
    for place, (mean, std, colour, name) in enumerate(policies):
        pen.curve(above, ACTIONS, np.exp(-0.5 * ((ACTIONS - mean) / std) ** 2), colour)
        samples = mean + std * np.sqrt(3.0) * (2.0 * quantiles - 1.0)
        mmd = np.sqrt(alike(samples, samples) + alike(DATA, DATA) - 2.0 * alike(samples, DATA))
        below.barh(-place, pen.rounded(mmd), 0.6, color=colour, alpha=0.55 if colour == GREY else 1.0)
        pen.label(below, pen.rounded(mmd) + 0.02, -place, name, colour, ha="left")
    pen.ticks(above, DATA)
    pen.plain(above, "action", "density")
    pen.plain(below, "MMD", "")
    above.set_xlim(-1.05, 1.05)
    above.set_ylim(-0.12, 1.2)
    below.set_xlim(0.0, 1.3)


def crr(figure: Figure) -> None:
    """The data's actions by value above, and by two kinds of weight below."""
    above, below = pen.panels(figure, 3.8, rows=2, height_ratios=(1.5, 1.0))
    actions = np.array([-0.86, -0.68, -0.52, -0.33, -0.15, 0.05, 0.22, 0.41, 0.6, 0.8])

    def q(action: Any) -> Any:
        return 1.1 * np.exp(-8.0 * (action - 0.3) ** 2) + 0.35 * np.sin(3.0 * action + 0.5)

    own = np.array([-0.62, -0.35, -0.2, -0.05])
    pen.curve(above, ACTIONS, q(ACTIONS), GREY, lw=1.6)
    pen.level(above, q(own).mean(), SKY)
    for action in own:
        pen.point(above, action, q(action), SKY, "D", 6)
    for action in actions:
        advantage = q(action) - q(own).mean()
        colour = AMBER if advantage > 0 else GREY
        pen.point(above, action, q(action), colour)
        below.bar(pen.rounded(action - 0.02), float(advantage > 0), 0.035, color=AMBER)
        below.bar(pen.rounded(action + 0.02), pen.rounded(min(np.exp(advantage / 0.6), 4.0)), 0.035, color=GREY)
    pen.label(above, 0.45, q(own).mean() - 0.2, "the policy's samples", SKY)
    pen.label(above, -0.15, 1.1, "data's actions", AMBER, ha="right")
    pen.label(below, -0.55, 3.4, "exponential")
    pen.label(below, -0.55, 2.0, "binary", AMBER)
    pen.plain(above, "", "Q")
    pen.plain(below, "action", "weight")
    above.set_ylim(-0.55, 1.55)
    for axes in (above, below):
        axes.set_xlim(-1.05, 1.05)


def expectile(values: np.ndarray, tau: float) -> float:
    """The minimizer of the asymmetric loss."""
    v = values.mean()
    for _ in range(200):
        weight = np.where(values >= v, tau, 1.0 - tau)
        v = (weight * values).sum() / weight.sum()
    return float(v)


def iql(figure: Figure) -> None:
    """The asymmetric loss, and the V that it gives among the values of the data's actions."""
    left, right = pen.panels(figure, 2.8, columns=2, width_ratios=(1.0, 1.3))
    advantages, values = np.linspace(-1.0, 1.0, 101), np.linspace(0.0, 4.0, 401)
    chances = np.exp(-0.5 * ((values - 1.4) / 0.45) ** 2) + 0.45 * np.exp(-0.5 * ((values - 2.6) / 0.4) ** 2)
    draws = np.interp((np.arange(2000) + 0.5) / 2000, np.cumsum(chances) / chances.sum(), values)
    pen.shade(right, values, 0.0 * values, chances, GREY, alpha=0.3)
    for tau, colour, high in ((0.5, GREY, 1.16), (0.7, SKY, 1.34), (0.9, AMBER, 1.52)):
        pen.curve(left, advantages, np.where(advantages >= 0, tau, 1.0 - tau) * advantages**2, colour)
        v = expectile(draws, tau)
        pen.curve(right, [v, v], [0.0, high], colour)
        pen.label(right, v - 0.1, high - 0.04, f"τ = {tau}", colour, ha="right")
    pen.upright(left, 0.0)
    pen.plain(left, "Q - V", "loss of V")
    pen.plain(right, "Q of the data's actions")
    right.set_ylim(0, 1.6)


def xql(figure: Figure) -> None:
    """The Gumbel loss with the expectile loss, and the V that temperatures give among the values."""
    left, right = pen.panels(figure, 2.8, columns=2, width_ratios=(1.0, 1.3))
    errors, values = np.linspace(-1.5, 1.5, 101), np.linspace(0.0, 4.0, 401)
    pen.curve(left, errors, np.exp(errors) - errors - 1.0, AMBER)
    pen.curve(left, errors, np.where(errors >= 0, 0.7, 0.3) * errors**2, GREY)
    pen.label(left, 1.25, 1.9, "Gumbel", AMBER, ha="right")
    pen.label(left, -0.35, 0.85, "expectile", ha="right")
    chances = np.exp(-0.5 * ((values - 1.4) / 0.45) ** 2) + 0.45 * np.exp(-0.5 * ((values - 2.6) / 0.4) ** 2)
    pen.shade(right, values, 0.0 * values, chances, GREY, alpha=0.3)
    for temperature, colour, high in ((5.0, GREY, 1.16), (0.5, SKY, 1.34), (0.1, AMBER, 1.52)):
        v = temperature * np.log(np.average(np.exp(values / temperature), weights=chances))
        pen.curve(right, [v, v], [0.0, high], colour)
        pen.label(right, v - 0.1, high - 0.04, f"β = {temperature:g}", colour, ha="right")
    pen.upright(left, 0.0)
    pen.plain(left, "(Q - V) / β", "loss of V")
    pen.plain(right, "Q of the data's actions")
    right.set_ylim(0, 1.6)


def rebrac(figure: Figure) -> None:
    """The distance to the data's action moves the policy, and lowers the critics' target."""
    actor, critic = pen.panels(figure, 2.9, columns=2)
    data, place = -0.5, 180
    q = 0.9 + 0.75 * ACTIONS
    held = q - 1.2 * (ACTIONS - data) ** 2
    for axes, title, x in ((actor, "policy", "action in s"), (critic, "critics' target", "action in s'")):
        pen.curve(axes, ACTIONS, q, SKY)
        pen.curve(axes, ACTIONS, held, AMBER)
        pen.ticks(axes, [data], 0.12)
        pen.plain(axes, x, "Q" if axes is actor else "")
        axes.set_title(title, color=GREY, fontsize=SIZE)
        axes.set_ylim(-1.6, 1.9)
        pen.label(axes, data + 0.06, -1.38, "data", ha="left")
    best = int(np.argmax(held))
    pen.point(actor, 1.0, q[-1], GREY, "*", 15)
    pen.point(actor, ACTIONS[best], held[best], AMBER, "*", 15)
    pen.pull(actor, (0.95, 1.62), (ACTIONS[best], 1.62), AMBER)
    pen.label(actor, -0.42, 1.62, "β₁", AMBER)
    pen.point(critic, ACTIONS[place], q[place], SKY)
    pen.point(critic, ACTIONS[place], held[place], AMBER)
    pen.pull(critic, (ACTIONS[place], q[place]), (ACTIONS[place], held[place]), AMBER)
    pen.label(critic, ACTIONS[place] - 0.16, 0.75, "β₂", AMBER)


# Two groups of the data's actions, to which a flow takes noise
MODES = np.array([-0.8, -0.7, -0.62, 0.45, 0.55, 0.62])


def ways(x: np.ndarray, steps: int) -> np.ndarray:
    """All points of the ways from x, by the velocity that takes a normal distribution to the two groups."""
    points = [x]
    for time in np.arange(steps) / steps:
        closeness = np.exp(-0.5 * ((x[:, None] - time * MODES) / (1.0 - time)) ** 2)
        x = x + ((closeness * MODES).sum(axis=1) / closeness.sum(axis=1) - x) / (1.0 - time) / steps
        points.append(x)
    return np.array(points)


def fql(figure: Figure) -> None:
    """A flow from noise to two groups of actions, its one-step map, and a policy that is drawn to larger values."""
    left, right = pen.panels(figure, 2.9, columns=2)
    for way in ways(np.linspace(-1.5, 1.5, 10), 40).T:
        pen.curve(left, np.linspace(0.0, 1.0, len(way)), way, SKY, lw=1.2)
    for action in MODES:
        pen.point(left, 1.0, action, GREY, size=5)
    pen.label(left, 0.95, -1.25, "data", ha="right")
    pen.plain(left, "noise        time        action")
    noise = np.linspace(-1.5, 1.5, 201)
    flow = ways(noise, 10)[-1]
    policy = flow + 0.16 * (1.0 - np.tanh(3.0 * flow))
    pen.curve(right, noise, flow, SKY)
    pen.curve(right, noise, policy, AMBER)
    pen.pull(right, (-0.9, -0.72), (-0.9, -0.2), AMBER)
    pen.label(right, -1.05, -0.1, "Q", AMBER)
    pen.label(right, -0.75, -0.95, "flow", SKY)
    pen.label(right, 0.65, 0.9, "policy", AMBER)
    pen.plain(right, "noise", "action")
    for axes in (left, right):
        axes.set_ylim(-1.6, 1.6)


def acfql(figure: Figure) -> None:
    """A path with a choice in each state, and one with a choice in every fourth state."""
    above, below = pen.panels(figure, 3.0, rows=2)
    steps = np.arange(9)
    path = 0.35 * np.sin(0.8 * steps)
    for axes, length, colour in ((above, 1, SKY), (below, 4, AMBER)):
        pen.curve(axes, steps, path, GREY, lw=1.2)
        for step in steps:
            chosen = step % length == 0
            pen.point(axes, step, path[step], colour if chosen else GREY, size=10 if chosen else 5)
        for start in steps[:-1:length]:
            pen.pull(axes, (start + 0.08, 0.75), (start + length - 0.08, 0.75), colour)
            pen.label(axes, start + length / 2.0, 1.08, "Q", colour)
        axes.set(xlim=(-0.4, 8.4), ylim=(-0.6, 1.35))
    pen.plain(above, "a choice in each state")
    pen.plain(below, "a choice for four steps")


def ifql(figure: Figure) -> None:
    """A flow from noise to two groups of actions, and the sampled action with the highest value."""
    left, right = pen.panels(figure, 2.9, columns=2)
    found = ways(np.array([-1.35, -0.95, -0.6, -0.25, 0.1, 0.5, 0.85, 1.2]), 40)
    for way in found.T:
        pen.curve(left, np.linspace(0.0, 1.0, len(way)), way, SKY, lw=1.2)
    for action in MODES:
        pen.point(left, 1.0, action, GREY, size=5)
    pen.label(left, 0.95, -1.25, "data", ha="right")
    pen.plain(left, "noise        time        action")
    actions, samples = np.linspace(-1.5, 1.5, 201), found[-1]
    pen.curve(right, 1.0 + 0.5 * actions, actions, GREY, lw=1.6)
    for sample in samples:
        pen.point(right, 1.0 + 0.5 * sample, sample, SKY)
    pen.point(right, 1.0 + 0.5 * samples.max(), samples.max(), AMBER, "*", 16)
    pen.label(right, 0.85, -0.75, "samples", SKY, ha="left")
    pen.label(right, 1.15, 0.95, "the best", AMBER, ha="right")
    pen.plain(right, "Q")
    for axes in (left, right):
        axes.set_ylim(-1.6, 1.6)


def denoised(x: np.ndarray, seed: int) -> np.ndarray:
    """All points of ten steps from x to the two groups of actions, with half of the noise."""
    rng, points = np.random.default_rng(seed), [x]
    for step in reversed(diffusion("vp", 10)):
        closeness = np.exp(-0.5 * ((x[:, None] - step.signal * MODES) / step.noise) ** 2)
        estimate = (closeness * MODES).sum(axis=1) / closeness.sum(axis=1)
        x = step.of_action * estimate + step.of_noised * x + step.std * rng.standard_normal(len(x)) / 2.0
        points.append(x)
    return np.array(points)


def diffusion_ql(figure: Figure) -> None:
    """Five steps from noise to two groups of actions, and the actions on a value that draws them upwards."""
    left, right = pen.panels(figure, 2.9, columns=2)
    found = denoised(np.linspace(-1.35, 1.35, 8), seed=2817)
    times = np.linspace(0.0, 1.0, len(found))
    for way in found.T:
        pen.curve(left, times, way, SKY, lw=1.2)
        for time, point in zip(times[:-1], way[:-1], strict=True):
            pen.point(left, time, point, SKY, size=4)
    for action in MODES:
        pen.point(left, 1.0, action, GREY, size=5)
    pen.label(left, 0.95, -1.25, "data", ha="right")
    pen.plain(left, "steps from noise to actions")
    actions = np.linspace(-1.5, 1.5, 201)
    pen.curve(right, 1.0 + 0.5 * actions, actions, GREY, lw=1.6)
    for sample in found[-1]:
        pen.point(right, 1.0 + 0.5 * sample, sample, SKY)
    for sample in (found[-1].max(), found[-1][found[-1] < 0.0].max()):
        pen.pull(right, (1.0 + 0.5 * sample, sample), (1.25 + 0.5 * sample, sample + 0.5), AMBER)
    pen.label(right, 0.8, -0.95, "samples", SKY, ha="left")
    pen.label(right, 1.05, 1.05, "their gradient", AMBER, ha="right")
    pen.plain(right, "Q")
    for axes in (left, right):
        axes.set_ylim(-1.6, 1.6)


def dt(figure: Figure) -> None:
    """Three steps as tokens, and the tokens that the last state's token attends to."""
    axes = pen.drawing(figure, (9.6, 4.5))
    for place in range(9):
        step, kind = divmod(place, 3)
        text = (f"R\n{(9, 7, 6)[step]}", "s", "a")[kind]
        is_read, x = place < 8, 0.8 + place
        pen.named(axes, (x, 1.5), (0.8, 1.1), text, (GREEN, BLUE, ORANGE)[kind] if is_read else PALE)
        if is_read:
            arrow(axes, (x, 2.05), (7.8 + 0.16 * (place - 7), 3.6))
    pen.named(axes, (7.3, 3.95), (3.0, 0.7), "predicted action", ORANGE)
    for step in range(3):
        pen.label(axes, 1.8 + 3 * step, 0.5, f"step {step + 1}")
