"""The reference's numbers, operation by operation: each has a place in our twin's source, and can be changed alone.

Everything that depends on a changed operation is recomputed, and nothing else.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, Var

from parity_tests.engine.interpreter import rule_of
from port_checker.explaining.frames import frames_of
from shared.frameworks.twins import ROOT

# Operations that change no number's value
SHAPES = {"broadcast_in_dim", "reshape", "squeeze", "transpose", "convert_element_type", "copy", "slice", "split",
          "stop_gradient", "iota", "concatenate", "gather"}  # fmt: skip

# The line and column of an expression's start and end
Span = tuple[int, int, int, int]
# An operand or a result of an operation
Atom = Any
Values = dict[Atom, np.ndarray]
# Returns an operand's number
Read = Callable[[Atom], np.ndarray]
# Computes replacement results for an operation from its operands
Instead = Callable[[Read], Sequence[np.ndarray]]


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a traced function.

    Attributes:
        name: JAX's name for it, or the function of `jax.numpy` that it implements, such as `clip`.
        key: Identifies it in another trace of the same source.
        span: The place of its expression in the loss or in the update.
        calls: The spans of its expression and of all enclosing calls, innermost first.
        inside: Whether it is inside a network.
        function: The twin's function that contains its expression.
        reads: Its operands.
        writes: Its results.
        compute: Computes the results from the operands.
        bind: The same for JAX arrays.
    """

    name: str
    key: tuple
    span: Span
    calls: tuple[Span, ...]
    inside: bool
    function: str
    reads: list[Atom]
    writes: list[Atom]
    compute: Callable[..., list[np.ndarray]]
    bind: Callable[..., list[Any]]


class Program:
    """A function of our twin as a list of operations.

    Attributes:
        operations: The operations that its results depend on, in order.
        inputs: Its inputs by name: `batch.rewards`, `noise.target`; a network's weights are `state.critic_1...`.
    """

    def __init__(self, twin: ModuleType, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
        """Traces the function for inputs given by name, as trees of arrays."""
        self.source = Source.of(twin)
        names, arrays = _leaves(given)
        structure = jax.tree.structure(given)
        closed = jax.make_jaxpr(lambda xs: function(**jax.tree.unflatten(structure, xs)))(arrays)
        self._constants = [np.asarray(value) for value in closed.consts]
        self._count: Counter[tuple] = Counter()
        self._jaxpr = closed.jaxpr
        self.inputs: dict[str, Atom] = dict(zip(names, closed.jaxpr.invars, strict=True))
        self.outputs: list[Atom] = list(closed.jaxpr.outvars)
        self.operations = self._needed([self._operation(eqn) for eqn in closed.jaxpr.eqns])
        # The kinds of operations in each expression; a loop runs each of them several times.
        self.kinds: dict[tuple, set[str]] = defaultdict(set)
        for op in self.operations:
            if op.name not in SHAPES:
                self.kinds[op.key[0]].add(op.name)
        self.by_key = {operation.key: number for number, operation in enumerate(self.operations)}
        self.made_by = {var: number for number, op in enumerate(self.operations) for var in op.writes}
        self.heavy = self._before_products()
        self.named = {var: name for name, var in self.inputs.items()}

    def _operation(self, eqn: Any) -> Operation:
        name = _name(eqn)
        frames = frames_of(eqn)
        ours = [frame for frame in frames if frame.file_name == self.source.file]
        calls = [frame for frame in ours if not frame.function_name.endswith("__call__")] or ours
        stack = tuple((frame.file_name, *_span(frame)) for frame in frames)
        self._count[stack, name] += 1
        rule, several = rule_of(eqn), eqn.primitive.multiple_results
        return Operation(
            name=name.strip("_"),
            key=(stack, name, self._count[stack, name]),
            span=_span(calls[0]) if calls else (0, 0, 0, 0),
            calls=tuple(map(_span, ours)),
            inside=bool(ours) and ours[0].function_name.endswith("__call__"),
            function=ours[0].function_name if ours else "",
            reads=list(eqn.invars),
            writes=list(eqn.outvars),
            compute=rule if several else lambda *xs: [rule(*xs)],
            bind=partial(_bound, eqn),
        )

    def _needed(self, operations: list[Operation]) -> list[Operation]:
        wanted = {atom for atom in self.outputs if isinstance(atom, Var)}
        kept = []
        for operation in reversed(operations):
            if any(var in wanted for var in operation.writes):
                kept.append(operation)
                wanted |= {atom for atom in operation.reads if isinstance(atom, Var)}
        return kept[::-1]

    def constants(self) -> Values:
        """The values that the function closes over."""
        return dict(zip(self._jaxpr.constvars, self._constants, strict=True))

    def _before_products(self) -> set[int]:
        """The operations that some matrix product depends on."""
        wanted: set[Atom] = set()
        found = set()
        for number, operation in reversed(list(enumerate(self.operations))):
            follows = any(var in wanted for var in operation.writes)
            if follows:
                found.add(number)
            if follows or operation.name == "dot_general":
                wanted |= {atom for atom in operation.reads if isinstance(atom, Var)}
        return found

    def values(self, given: Mapping[str, Any]) -> Values:
        """Computes all numbers of the function for these inputs."""
        _, arrays = _leaves(given)
        values = self.constants()
        for var, array in zip(self._jaxpr.invars, arrays, strict=True):
            values[var] = np.asarray(array, _dtype(var))

        def read(atom: Atom) -> np.ndarray:
            return np.asarray(atom.val, _dtype(atom)) if isinstance(atom, Literal) else values[atom]

        with np.errstate(all="ignore"):
            for operation in self.operations:
                values.update(zip(operation.writes, operation.compute(*map(read, operation.reads)), strict=True))
        return values

    def results(self, values: Values, instead: Mapping[int, Instead], inputs: Values | None = None) -> np.ndarray:
        """The flattened results, if operations (by their index) give other values or if some inputs are others."""
        changed: Values = dict(inputs or {})
        first = 0 if inputs else min(instead, default=len(self.operations))

        def read(atom: Atom) -> np.ndarray:
            if isinstance(atom, Literal):
                return np.asarray(atom.val, _dtype(atom))
            return changed[atom] if atom in changed else values[atom]

        with np.errstate(all="ignore"):
            for number in range(first, len(self.operations)):
                operation = self.operations[number]
                if number in instead:
                    found = instead[number](read)
                elif any(atom in changed for atom in operation.reads if isinstance(atom, Var)):
                    found = operation.compute(*map(read, operation.reads))
                else:
                    continue
                changed.update(zip(operation.writes, found, strict=True))
        return np.concatenate([np.ravel(read(atom)) for atom in self.outputs])

    # ---- in words

    def text(self, atom: Atom) -> str:
        """The source expression that yields a number; empty if there is none."""
        if isinstance(atom, Literal):
            return f"{float(atom.val):g}"
        if atom in self.named:
            return self.named[atom]
        operation = self.operations[self.made_by[atom]] if atom in self.made_by else None
        return "" if operation is None else self.source.text(operation.span)


def _dtype(atom: Any) -> np.dtype:
    return atom.aval.dtype


def _bound(eqn: Any, *operands: Any) -> list[Any]:
    found = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return found if eqn.primitive.multiple_results else [found]


def _name(eqn: Any) -> str:
    """The function that an equation calls, such as `clip` or `relu`, or else its own operation."""
    inner = eqn.params.get("call_jaxpr")
    if inner is not None and len(inner.eqns) == 1:
        return _name(inner.eqns[0])
    return str(eqn.params.get("name") or eqn.primitive.name)


def _leaves(given: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(dict(given))
    names = ["".join(jax.tree_util.keystr((entry,)) for entry in path[1:]) for path, _ in leaves]
    return [f"{path[0].key}{name}" for (path, _), name in zip(leaves, names, strict=True)], [x for _, x in leaves]


def _span(frame: Any) -> Span:
    return frame.start_line, frame.start_column, frame.end_line, frame.end_column


class Source:
    """A twin's source, to look up expressions by place.

    Attributes:
        file: The path of the file.
        name: Its name in messages.
    """

    def __init__(self, file: str) -> None:
        path = Path(file)
        self.file, self.name = file, path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        self._lines = text.splitlines()
        self._nodes: dict[Span, ast.expr] = {}
        self._statements: dict[ast.expr | None, ast.stmt] = {}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.expr):
                end = node.end_lineno or 0, node.end_col_offset or 0
                self._nodes.setdefault((node.lineno, node.col_offset, *end), node)
            elif isinstance(node, ast.Assign | ast.Return):
                self._statements[node.value] = node

    @staticmethod
    @cache
    def of(twin: ModuleType) -> "Source":
        """The source of a module."""
        assert twin.__file__ is not None
        return Source(twin.__file__)

    def place(self, span: Span) -> str:
        """Formats a place as `corl_jax/td3_bc.py:181`."""
        return f"{self.name}:{span[0]}"

    def node(self, span: Span) -> ast.expr | None:
        """The expression with this exact span."""
        return self._nodes.get(span)

    def around(self, spans: Sequence[Span]) -> Span:
        """The smallest expression that contains all these spans; the first span if none does."""
        first, last = min(span[:2] for span in spans), max(span[2:] for span in spans)
        holding = [span for span in self._nodes if span[:2] <= first and span[2:] >= last]
        return max(holding, key=lambda span: (span[:2], [-end for end in span[2:]]), default=spans[0])

    def text(self, span: Span) -> str:
        """The expression on one line; empty if there is none."""
        node = self.node(span)
        return "" if node is None else ast.unparse(node)

    def statement(self, span: Span) -> str:
        """The statement that assigns or returns the expression; if there is none, the expression."""
        statement = self._statements.get(self.node(span))
        return self.text(span) if statement is None else ast.unparse(statement)
