"""Infers an optimiser's learning rate, epsilon and weight decay from a step."""

from collections.abc import Sequence

import numpy as np

from port_checker.explaining.changes import close, shown
from port_checker.explaining.steps.moments import known_betas
from port_checker.explaining.steps.step import ENOUGH, VAGUE, Sentences, Step, rounded, same

EPSILON = 1e-8


def of_weights(steps: Sequence[Step]) -> Sentences:
    """Explains a step that follows from the port's moments in another way than the reference's step from its own."""
    rates = [(_rate_and_decay(step, "ours"), _rate_and_decay(step, "right")) for step in steps]
    if any(right is None for _, right in rates) or not _enough(steps):
        return ()
    known = [(*ours, *right) for ours, right in rates if ours is not None and right is not None]
    if len(known) == len(rates):
        return _of_rates(steps, known)
    scale = [right[0] for _, right in rates if right is not None]
    if told := _epsilon(steps, scale):
        return (f"Adam's epsilon for {{}} {told}",)
    if all(same(step.moved("ours"), rate * _bare(step)) for step, rate in zip(steps, scale, strict=True)):
        return ("Adam's moments for {} are not corrected for their start at 0",)
    return (f"{VAGUE}its step does not follow from Adam's moments",)


def _enough(steps: Sequence[Step]) -> bool:
    return sum(len(step.weights("before")) for step in steps) >= ENOUGH


def _of_rates(wrong: Sequence[Step], rates: Sequence[tuple[float, float, float, float]]) -> Sentences:
    """Describes learning rates and decays that differ from the right ones."""
    told = []
    ratios = [ours / right for ours, _, right, _ in rates]
    if all(close(ratio, -1.0) for ratio in ratios):
        return ("{}: moved up the gradient, not down",)
    if not all(close(ratio, 1.0) for ratio in ratios):
        pairs = zip(rates, wrong, strict=True)
        said = {f"{shown(-x)} in place of {shown(-y)}": s for (x, _, y, _), s in pairs if not close(x, y)}
        if len(said) > 1:
            # A schedule, or other settings
            said = {f"{text} in update {step.number} ({step.settings})": step for text, step in list(said.items())[:3]}
        told.append(f"the learning rate of {{}} is {', '.join(said)}")
    decays = [(mine / ours, theirs / right) for ours, mine, right, theirs in rates]
    if not all(abs(mine - theirs) <= 1e-6 * max(1e-3, abs(theirs)) for mine, theirs in decays):
        each = dict.fromkeys(f"{shown(mine)} in place of {shown(theirs)}" for mine, theirs in decays)
        told.append(f"the weight decay of {{}} is {', '.join(each)}")
    return tuple(told)


def _direction(step: Step, when: str) -> np.ndarray:
    """The direction that the learning rate scales: Adam's corrected first moments over the roots of the second ones."""
    unit, root = _corrected(step, when)
    return unit / (root + EPSILON)


def _corrected(step: Step, when: str) -> tuple[np.ndarray, np.ndarray]:
    first, second = (1.0 - beta ** step.steps(when) for beta in known_betas(step))
    return step.moments(when, "m") / first, np.sqrt(np.maximum(step.moments(when, "v") / second, 0.0))


def _bare(step: Step) -> np.ndarray:
    """The same direction without the correction for moments that start at 0."""
    return step.moments("ours", "m") / (np.sqrt(np.maximum(step.moments("ours", "v"), 0.0)) + EPSILON)


def _rate_and_decay(step: Step, when: str) -> tuple[float, float] | None:
    """How far a step follows Adam's direction and the weights themselves; None if it is no sum of these."""
    moved, direction, weights = step.moved(when), _direction(step, when), step.weights("before")
    if len(moved) < ENOUGH:
        return (float(moved[0] / direction[0]), 0.0) if len(moved) == 1 and direction[0] else None
    (rate, decay), *_ = np.linalg.lstsq(np.stack([direction, weights], axis=1), moved, rcond=None)
    if same(moved, rate * direction):
        return float(rate), 0.0
    return (float(rate), float(decay)) if same(moved, rate * direction + decay * weights) else None


def _epsilon(wrong: Sequence[Step], rates: Sequence[float]) -> str:
    """Describes another epsilon, added to the root or inside it."""
    ours = np.concatenate([step.moved("ours") / rate for step, rate in zip(wrong, rates, strict=True)])
    unit, root = (np.concatenate(values) for values in zip(*(_corrected(step, "ours") for step in wrong), strict=True))
    if len(ours) < ENOUGH:
        return ""
    asked = np.where(ours == 0.0, 0.0, unit / np.where(ours == 0.0, 1.0, ours))
    # Epsilon matters most where the root is small.
    small = np.argsort(np.where(np.abs(ours) > 1e-6 * np.abs(ours).max(), root, np.inf))[: max(ENOUGH, len(root) // 50)]
    beside = float(np.median((asked - root)[small]))
    if beside > 0.0 and same(ours, unit / (root + beside)):
        return f"is {rounded(beside)} in place of {EPSILON:g}"
    within = float(np.median(((asked - EPSILON) ** 2 - root**2)[small]))
    if within > 0.0 and same(ours, unit / (np.sqrt(root**2 + within) + EPSILON)):
        return f"is within the root: {rounded(within)}"
    return ""
