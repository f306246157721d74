"""Infers the gradient that Adam received from its moments."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from port_checker.explaining.changes import close, shown
from port_checker.explaining.reference import figures_of, flat, reference
from port_checker.explaining.steps.step import VAGUE, Sentences, Step, factor, rounded, same
from port_checker.finding.questions import Question
from shared.frameworks.exchange import Named

BETAS = (0.9, 0.999)


def betas_of(step: Step) -> tuple[float, float] | None:
    """Adam's betas in the reference: the pair for which both moments imply the same gradient."""
    known = (getattr(step.question.given.config, "betas", BETAS), BETAS)
    return next((betas for betas in known if tells(step, "right", betas)), None)


def known_betas(step: Step) -> tuple[float, float]:
    """The same betas, if they are known to exist."""
    betas = betas_of(step)
    assert betas is not None
    return betas


def _gradient(step: Step, when: str) -> np.ndarray:
    """The gradient that Adam received, inferred from its first moments."""
    return _told_by(step, when, known_betas(step))


def _told_by(step: Step, when: str, betas: tuple[float, float]) -> np.ndarray:
    return (step.moments(when, "m") - betas[0] * step.moments("before", "m")) / (1.0 - betas[0])


def tells(step: Step, when: str, betas: tuple[float, float]) -> bool:
    """Whether the second moments imply the same gradient as the first ones."""
    expected = betas[1] * step.moments("before", "v") + (1.0 - betas[1]) * _told_by(step, when, betas) ** 2
    return same(step.moments(when, "v"), expected)


def of_moments(wrong: Sequence[Step], name: str) -> Sentences:
    """Explains how Adam's gradient differs from the right one."""
    ours, right = (np.concatenate([_gradient(step, when) for step in wrong]) for when in ("ours", "right"))
    if (number := factor(ours, right)) is not None:
        return (f"Adam is given the gradient by {{}} times {shown(number)}",)
    if clipped := _clipped(wrong, name):
        return (f"the gradient by {{}} is cut {clipped} before Adam is given it",)
    weights = np.concatenate([step.weights("before") for step in wrong])
    if (number := factor(ours - right, weights)) is not None:
        return (f"the weights of {{}} times {shown(number)} are added to its gradient: decay within Adam's moments",)
    return _of_another_state(wrong, name)


def _clipped(wrong: Sequence[Step], name: str) -> str:
    """Describes how gradients were clipped: each is the right one times a factor up to 1, or bounded entry by entry."""
    gradients = [(_gradient(step, "ours"), _gradient(step, "right")) for step in wrong]
    numbers = [factor(ours, right) for ours, right in gradients]
    if all(number is not None and 0.0 < number < 1.0 + 1e-9 for number in numbers):
        cut = [step for step, number in zip(wrong, numbers, strict=True) if number is not None and number < 1.0 - 1e-6]
        together = next(about.of for about in reference(name).pair.losses.values() if wrong[0].part in about.of)
        for of in ([wrong[0].part], together):
            norms = [_norm([_gradient(replace(step, part=part), "ours") for part in of]) for step in cut]
            if len(norms) > 1 and all(abs(norm - norms[0]) <= 1e-4 * norms[0] for norm in norms):
                return f"to a norm of {rounded(norms[0])}"
        return "by its norm"
    bounds = [np.abs(ours).max() for ours, _ in gradients]
    cut_each = all(same(ours, np.clip(right, -x, x)) for (ours, right), x in zip(gradients, bounds, strict=True))
    return f"to {rounded(max(bounds))} entry by entry" if cut_each else ""


def _norm(gradients: Sequence[np.ndarray]) -> float:
    return float(np.linalg.norm(np.concatenate(gradients)))


def of_forgetting(wrong: Sequence[Step]) -> Sentences:
    """Explains right gradients with wrong moments by other betas."""
    for place, (kind, power) in enumerate((("m", 1), ("v", 2))):
        given = [_gradient(step, "right") ** power for step in wrong]
        before = [step.moments("before", kind) for step in wrong]
        ours = [step.moments("ours", kind) for step in wrong]
        rates = [known_betas(step)[place] for step in wrong]
        if all(same(now, (1.0 - rate) * g) for now, g, rate in zip(ours, given, rates, strict=True)):
            return ("Adam's moments for {} from before the update are lost",)
        number = factor(np.concatenate(ours) - np.concatenate(given), np.concatenate(before) - np.concatenate(given))
        if number is not None and not close(number, rates[0]):
            return (f"Adam's b{place + 1} for {{}} is {shown(number)} in place of {rates[0]:g}",)
    return (f"{VAGUE}Adam's two moments do not tell of the same gradient",)


def _of_another_state(wrong: Sequence[Step], name: str) -> Sentences:
    """Names parts that have already moved, or not yet, at the point where the gradient is taken."""
    part, pair = wrong[0].part, reference(name).pair
    unknown = (
        f"{VAGUE}Adam is given another gradient than the reference's, though your losses and their gradients are right",
    )
    losses = [loss for loss, about in pair.losses.items() if part in about.of]
    if len(losses) != 1 or not set(pair.losses[losses[0]].inputs) <= wrong[0].question.given.inputs[0].keys():
        return unknown
    found = [(_taken(step, losses[0], "ours", name), _taken(step, losses[0], "right", name)) for step in wrong[:2]]
    if any(ours is None or right is None or (ours, right) != found[0] for ours, right in found):
        return unknown
    ours, right = found[0]
    assert ours is not None
    assert right is not None
    late, early = ("`, `".join(sorted(x)) for x in (right - ours, ours - right))
    where = [f"at `{late}` as it was before its step, the reference's as it is after it"] if late else []
    where += [f"at `{early}` as it is after its step, the reference's as it was before it"] if early else []
    # If it is taken at the right point, another part's mistake makes it wrong.
    return (f"the gradient of `{losses[0]}` by {{}} is taken {', and '.join(where)}",) if where else ()


def _taken(step: Step, loss: str, when: str, name: str) -> frozenset[str] | None:
    """The parts that have made their step at the point where a gradient is taken; None if no combination fits."""
    others = [part for part in step.right if not part.endswith("_optimizer") and part != step.part]
    others = [part for part in others if _moves(step, part, when)][:6]
    target = _gradient(step, when)
    for size in range(len(others) + 1):
        for moved in combinations(others, size):
            gradient = _gradient_at(step, loss, moved, when, name)
            if gradient is not None and same(target, gradient):
                return frozenset(moved)
    return None


def _moves(step: Step, part: str, when: str) -> bool:
    return bool((step.weights(when, part) != step.weights("before", part)).any())


def _gradient_at(step: Step, loss: str, moved: Sequence[str], when: str, name: str) -> np.ndarray | None:
    """The reference's gradient after some parts have made their step."""
    given, after = step.question.given, getattr(step, when)
    start = {**given.start, **{part: after[part] for part in moved}}
    groups: dict[str, Named] = {f"{loss} by {part}": {} for part in reference(name).pair.losses[loss].of}
    question = Question("gradient", step.question.where, replace(given, start=start), groups)
    return flat((figures_of(reference(name), question) or {}).get(f"{loss} by {step.part}"))
