"""Infers a target network's rate and source from its move."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from port_checker.explaining.changes import close, shown
from port_checker.explaining.steps.step import VAGUE, Sentences, Step, factor, same


def of_target(steps: Sequence[Step]) -> Sentences:
    """Describes when, how far and towards what a target moves, if that differs from the reference."""
    wrong = [step for step in steps if not same(step.moved("ours"), step.moved("right"))]
    for step in wrong:
        ours, right = (bool(step.moved(when).any()) for when in ("ours", "right"))
        if ours != right:
            what, also = ("moved", "is not") if ours else ("not moved", "is")
            return (f"{{}}: {what} in update {step.number}, in which the reference's {also}",)
    followed = [(_followed(step, "ours"), _followed(step, "right")) for step in wrong]
    if not followed or any(right is None for _, right in followed):
        return ()
    known = [(ours, right) for ours, right in followed if ours is not None and right is not None]
    if len(known) < len(followed):
        return (f"{VAGUE}it is no mean of itself and any one network of its shapes",)
    sentences, sources = [], {(ours[0], right[0]) for ours, right in known}
    rates = [(ours[1], right[1]) for ours, right in known]
    if len(sources) == 1 and (source := sources.pop())[0] != source[1]:
        sentences.append(f"{{}}: moved towards {source[0]}, the reference's towards {source[1]}")
    if not all(close(ours, right) for ours, right in rates):
        told = dict.fromkeys(f"{shown(ours)} in place of {shown(right)}" for ours, right in rates)
        sentences.append(f"{{}}: moved at a rate of {', '.join(told)}{_rule(rates)}")
    return tuple(sentences)


def _rule(rates: Sequence[tuple[float, float]]) -> str:
    rules: Mapping[str, Callable[[float], float]] = {
        " (its square)": lambda x: x * x,
        " (1 minus it)": lambda x: 1.0 - x,
        " (twice it)": lambda x: 2.0 * x,
        " (half of it)": lambda x: x / 2.0,
        " (applied twice)": lambda x: 1.0 - (1.0 - x) ** 2,
        " (its root)": lambda x: x**0.5,
    }
    return next((told for told, rule in rules.items() if all(close(ours, rule(right)) for ours, right in rates)), "")


def _followed(step: Step, when: str) -> tuple[str, float] | None:
    """The source that a target moves towards, and its rate; the network of its own name is tried first."""
    moved = step.moved(when)
    if not moved.any():
        return None
    for said, weights in _sources(step, when):
        way = weights - step.weights("before")
        if len(way) == len(moved) and (rate := factor(moved, way)) is not None:
            return said, rate
    return None


def _sources(step: Step, when: str) -> Iterator[tuple[str, np.ndarray]]:
    own = step.part.removesuffix("_target")
    names = sorted((part for part in step.before if not part.endswith("_optimizer")), key=lambda part: part != own)
    for part in names:
        alike = part == own or _shapes(step.before[part]) == _shapes(step.before[step.part])
        if alike and part != step.part and part in getattr(step, when):
            said = "its network" if part == own else f"`{part}`"
            yield f"{said} as it is after the step", step.weights(when, part)
            yield f"{said} as it was before the step", step.weights("before", part)


def _shapes(values: Mapping[str, Any]) -> list[tuple[int, ...]]:
    return [np.shape(values[name]) for name in sorted(values)]
