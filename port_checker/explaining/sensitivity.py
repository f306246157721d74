"""Finds the inputs that a loss depends on by changing each input separately in the port and in the reference."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from port_checker.explaining.reference import changed, group_of, inputs_of, reference, shaken
from port_checker.finding.port import Port
from port_checker.finding.questions import Question

# A smaller relative change means no dependence, a larger one means dependence.
UNMOVED, MOVED = 1e-13, 1e-6


def dependences(port: Port, loss: str, question: Question) -> tuple[str, ...]:
    """Describes inputs that only one of the two losses depends on, at all places tried."""
    told: dict[str, int] = {}
    places = [question, shaken(question, 0.3)]
    for place in places:
        base = [group_of(one, place, loss) for one in (port, reference(port.pair.name))]
        for name, other in variations(place):
            moved = [_moves(before, group_of(one, other, loss)) for before, one in
                     zip(base, (port, reference(port.pair.name)), strict=True)]  # fmt: skip
            if moved == [False, True]:
                said = f"the reference's {loss} changes with `{name}`, yours does not"
                told[said] = told.get(said, 0) + 1
            elif moved == [True, False]:
                said = f"your {loss} changes with `{name}`, the reference's does not"
                told[said] = told.get(said, 0) + 1
    return tuple(said for said, times in told.items() if times == len(places))[:2]


def _moves(before: np.ndarray | None, after: np.ndarray | None) -> bool | None:
    """Whether a number changed; None if that is unclear."""
    if before is None or after is None or not (np.isfinite(before).all() and np.isfinite(after).all()):
        return None
    change = np.abs(after - before).max() / (np.abs(before).max() or 1.0)
    return None if UNMOVED < change < MOVED else bool(change >= MOVED)


def variations(question: Question) -> Iterator[tuple[str, Question]]:
    """Yields the question with one input changed, with the input's name."""
    for name, value in inputs_of(question.given).items():
        if name in ("batch", "noise"):
            for field in value._fields:
                if jax.tree.leaves(getattr(value, field)):
                    other = value._replace(**{field: jax.tree.map(_other, getattr(value, field))})
                    yield f"{name}.{field}", changed(question, {name: other})
        elif name != "step":
            yield name, changed(question, {name: jax.tree.map(_other, value)})
    for part, values in question.given.start.items():
        if not part.endswith("_optimizer"):
            moved: Mapping[str, Any] = {name: np.asarray(x) * 0.9 + 0.01 for name, x in values.items()}
            yield part, changed(question, start={**question.given.start, part: moved})


def _other(value: Any) -> Any:
    """Other numbers of the same kind: numbers of other rows, or inverted flags."""
    value = np.asarray(value)
    reverse = np.flip(value, 0) if value.ndim else value
    if set(np.unique(value)) <= {0, 1}:
        return jnp.asarray(1 - value)
    return jnp.asarray(reverse * value.dtype.type(0.9) if value.dtype.kind == "f" else reverse)
