"""Finds where a gradient flows but should not, or the reverse, by stopping it or letting it through in our twin.

Each place has a gate: x = stop(x) + gate * (x - stop(x)) equals x, but scales its gradient by the gate. The gradient is
traced once, with all gates as arguments, and then computed with one of them flipped.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, Var
from jax.lax import stop_gradient

from parity_tests.engine.interpreter import interpreted
from port_checker.explaining.changes import Change
from port_checker.explaining.families.places import alike_calls, is_weight, outer_of, short
from port_checker.explaining.operations import Atom, Operation, Program
from port_checker.explaining.reference import arguments_of, figures_of, flat, kind_of, program_of, reference, shaken
from port_checker.finding.figures import Figures
from port_checker.finding.port import Port
from port_checker.finding.questions import Question

# How close a gradient must come, relative to its largest entry; the second applies far from the ladder's numbers
SAME, FAR = 1e-7, 1e-5


@dataclass(frozen=True, eq=False)
class Gate:
    """A place at which a gradient may flow.

    Attributes:
        change: The source change that corresponds to flipping the gate.
        reads: The operations, by key, with the variable that they read through the gate; None stands for all.
        neutral: 1 where our twin lets the gradient through, 0 where it stops it.
        others: For inputs that are constants, by name, the differentiated input with the same value.
    """

    change: Change
    reads: frozenset
    neutral: float
    others: Mapping[str, str]


def gates_of(program: Program, parts: Sequence[str]) -> list[Gate]:
    """All gates of a loss: its stop_gradients, the inputs of its calls, and weights that it treats as constants."""
    live = _live(program)
    found = [*_stops(program), *_constants(program, parts)]
    for calls in alike_calls(program):
        outer = [[atom for atom in _read(program, call) if atom in live] for call in calls]
        for atoms in zip(*outer, strict=False):
            found.append(_detached(program, calls, atoms))
    return list({gate.reads: gate for gate in found}.values())


def _read(program: Program, operations: Sequence[Operation]) -> list[Atom]:
    """The inputs of a call: the first weight, which represents all weights, and everything else."""
    atoms = [atom for op in operations for atom in op.reads if isinstance(atom, Var) and is_weight(program, atom)]
    return [*atoms[:1], *outer_of(program, operations)]


def _live(program: Program) -> set[Atom]:
    """The variables that the gradient may flow through."""
    found = {var for name, var in program.inputs.items() if name.startswith("parts")}
    for operation in program.operations:
        if operation.name != "stop_gradient" and any(isinstance(a, Var) and a in found for a in operation.reads):
            found |= {var for var in operation.writes if var.aval.dtype.kind == "f"}
    return found


def _stops(program: Program) -> Iterator[Gate]:
    for operation in program.operations:
        text = program.source.text(operation.span)
        if operation.name == "stop_gradient" and text.startswith("stop_gradient"):
            inner = text.removeprefix("stop_gradient(").removesuffix(")")
            change = Change("missing stop_gradient", program.source.place(operation.span), text, inner)
            yield Gate(change, frozenset({(operation.key, None)}), 0.0, {})


def _constants(program: Program, parts: Sequence[str]) -> Iterator[Gate]:
    """Weights of the state that a loss treats as constants in one place but is differentiated by in another."""
    for number, part in enumerate(parts):
        names = {name: f"parts[{number}]{name.removeprefix(f'state.{part}')}" for name in program.inputs}
        names = {name: other for name, other in names.items()
                 if name.startswith(f"state.{part}") and other in program.inputs}  # fmt: skip
        mine = {program.inputs[name] for name in names}
        for calls in alike_calls(program):
            operations = [operation for call in calls for operation in call]
            reads = {(op.key, atom) for op in operations for atom in op.reads if isinstance(atom, Var) and atom in mine}
            text, span = program.text(calls[0][-1].writes[0]), calls[0][0].span
            if reads:
                change = Change(f"missing stop_gradient: `{part}` is learnt through its value here too",
                                program.source.place(span), text, "")  # fmt: skip
                yield Gate(change, frozenset(reads), 0.0, names)


def _detached(program: Program, calls: Sequence[Sequence[Operation]], atoms: Sequence[Atom]) -> Gate:
    """Treats one input of each of these calls as a constant."""
    text, span = program.source.text(calls[0][0].span), calls[0][0].span
    if is_weight(program, atoms[0]):
        reads = {(op.key, a) for call in calls for op in call for a in op.reads if is_weight(program, a)}
        return Gate(Change(f"`{text}` is detached from its weights", program.source.place(span), text, ""),
                    frozenset(reads), 1.0, {})  # fmt: skip
    said = short(program.text(atoms[0]))
    new = text.replace(said, f"stop_gradient({said})") if said != text and text.count(said) == 1 else ""
    reads = {(op.key, a) for call, atom in zip(calls, atoms, strict=True) for op in call for a in op.reads if a is atom}
    return Gate(Change(f"`{said}` is detached", program.source.place(span), text, new), frozenset(reads), 1.0, {})


def gated(program: Program, gates: Sequence[Gate]) -> Callable[[Mapping[str, Any], Any], Any]:
    """Returns the loss's gradient by its parts, as a function of its inputs and of the gates."""
    through: dict[tuple, list[int]] = defaultdict(list)
    for number, gate in enumerate(gates):
        for place in gate.reads:
            through[place].append(number)

    def loss(parts: Any, given: Mapping[str, Any], openings: jax.Array) -> jax.Array:
        leaves = jax.tree.leaves({**given, "parts": parts})
        values: dict[Atom, Any] = {**program.constants()}
        values.update(zip(program.inputs.values(), leaves, strict=True))

        def read(operation: Operation, atom: Any) -> Any:
            if isinstance(atom, Literal):
                return atom.val
            value = values[atom]
            for number in through.get((operation.key, atom), ()):
                others = gates[number].others
                same = values[program.inputs[others[program.named[atom]]]] if others else value
                value = (value if others else stop_gradient(value)) + openings[number] * (same - stop_gradient(same))
            return value

        for operation in program.operations:
            given_now = [read(operation, atom) for atom in operation.reads]
            found = operation.bind(*given_now)
            for number in through.get((operation.key, None), ()):
                found = [found[0] + openings[number] * (given_now[0] - stop_gradient(given_now[0]))]
            values.update(zip(operation.writes, found, strict=True))
        return jnp.asarray(values[program.outputs[0]])

    gradient = interpreted(jax.grad(loss))
    return lambda given, openings: gradient(given["parts"], dict(given), jnp.asarray(openings))


# ---- which gate ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """A gradient to be reproduced.

    Attributes:
        question: The inputs.
        target: Somebody's flattened gradient by each part.
        tolerance: The largest relative error allowed.
    """

    question: Question
    target: Mapping[str, np.ndarray]
    tolerance: float

    def same(self, ours: Mapping[str, np.ndarray]) -> bool:
        """Whether these are the gradients."""
        return all(_near(ours[part], theirs, self.tolerance) for part, theirs in self.target.items())


def _near(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> bool:
    scale = max(np.abs(ours).max(initial=0.0), np.abs(theirs).max(initial=0.0)) or 1.0
    return bool(np.abs(ours - theirs).max(initial=0.0) <= tolerance * scale)


def flow(port: Port, loss: str, asked: Sequence[Question], answers: Sequence[Figures]) -> list[Change]:
    """Finds the stops to remove from our twin, or to add, so that it gives a loss's gradients by all parts."""
    name, parts = port.pair.name, port.pair.losses[loss].of
    programs: dict[Program, tuple[list[Gate], Callable]] = {}
    kept: dict[Change, None] | None = None
    for case in cases_of(port, loss, asked, answers):
        given = case.question.given
        program = program_of(name, "loss", loss, given)
        if program not in programs:
            gates = gates_of(program, parts)
            programs[program] = gates, gated(program, gates)
        gates, gradient = programs[program]
        compute = partial(_gradient, name, loss, case.question, gradient)
        neutral = np.array([gate.neutral for gate in gates])
        unchanged = case.same(compute(neutral))
        here = {gate.change: number for number, gate in enumerate(gates)}
        kept = dict.fromkeys(here) if kept is None else kept
        kept = {
            change: None
            for change in kept
            if (unchanged if change not in here else case.same(compute(_turned(neutral, here[change]))))
        }
    return list(kept or {})


def _turned(openings: np.ndarray, number: int) -> np.ndarray:
    return np.where(np.arange(len(openings)) == number, 1.0 - openings, openings)


def _gradient(name: str, loss: str, question: Question, gradient: Callable, openings: Any) -> dict[str, np.ndarray]:
    own, given = reference(name), question.given
    found = gradient(arguments_of(name, "loss", loss, given), openings)
    layouts = own.layouts(given.config, given.sizes, given.start)
    trees = zip(own.pair.losses[loss].of, found, strict=True)
    numbers = {part: flat(layouts[part].to_torch(tree, part)) for part, tree in trees}
    return {part: values for part, values in numbers.items() if values is not None}


def cases_of(port: Port, loss: str, asked: Sequence[Question], answers: Sequence[Figures]) -> list[Case]:
    """A loss's gradients in all questions, wrong ones first, followed by some far from the ladder's numbers."""
    found: list[Case] = []
    kinds: dict[str, Question] = {}
    for question, figures in zip(asked, answers, strict=True):
        if target := _by_part(loss, figures):
            found.append(Case(question, target, SAME))
            kinds.setdefault(kind_of(question), question)
    found.sort(key=lambda case: case.same(_by_part(loss, case.question.expected)))
    for question in list(kinds.values())[:2]:
        for other in (shaken(question, 0.3), shaken(question, 1.0)):
            groups = {name: value for name, value in other.expected.items() if name.startswith(f"{loss} by ")}
            target = _by_part(loss, figures_of(port, replace(other, expected=groups)) or {})
            if target and all(np.isfinite(numbers).all() for numbers in target.values()):
                found.append(Case(other, target, FAR))
    return found


def _by_part(loss: str, figures: Figures) -> dict[str, np.ndarray]:
    groups = {name.partition(" by ")[2]: values for name, values in figures.items() if name.startswith(f"{loss} by ")}
    return {part: numbers for part, values in groups.items() if (numbers := flat(values)) is not None}


# ---- derivatives ---------------------------------------------------------------------------------------------------

# The step length, and the relative error allowed between a difference quotient and a derivative
STEP, NEAR = 1e-6, 1e-4


def derivative_told(port: Port, loss: str, question: Question) -> tuple[str, ...]:
    """Reports a mismatch: only one of this gradient and the reference's is the derivative of its own loss."""
    ours, right = (_is_derivative(one, loss, question) for one in (port, reference(port.pair.name)))
    if (ours, right) == (True, False):
        return (f"your gradient is the derivative of your {loss}, the reference's is not: a stop_gradient is missing",)
    if (ours, right) == (False, True):
        return (f"your gradient is not the derivative of your {loss}, the reference's is: something is detached",)
    return ()


def _is_derivative(port: Port, loss: str, question: Question) -> bool | None:
    """Whether a gradient is the derivative of its loss along a random direction; None if that is unclear."""
    given = question.given
    state, inputs = port.state(given.config, given.sizes, given.start), given.inputs[0]
    parts, rng = port.differentiated(loss, state), np.random.default_rng(0)
    way = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=np.shape(leaf))), parts)
    values = [
        float(port.loss(loss, state, inputs, jax.tree.map(lambda x, d, s=sign: x + s * STEP * d, parts, way)))
        for sign in (1.0, -1.0)
    ]
    slope = (values[0] - values[1]) / (2.0 * STEP)
    products = jax.tree.map(lambda g, d: float(jnp.vdot(g, d)), port.gradient(loss, state, inputs), way)
    told, scale = sum(jax.tree.leaves(products)), max(map(abs, jax.tree.leaves(products)), default=0.0)
    off = abs(slope - told) / max(abs(slope), scale, 1e-9)
    return True if off < NEAR else False if off > 100.0 * NEAR else None
