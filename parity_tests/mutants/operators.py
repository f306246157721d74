"""Makes mutants from the syntax tree: operator by operator, constant by constant, argument by argument.

A mutant is a text edit of one expression or statement, so that the rest of the file stays the same.
"""

import ast
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from parity_tests.mutants.syntax import (
    Source,
    bound_names,
    is_docstring,
    is_module,
    is_removable,
    is_target,
    line_range,
    marked,
    name_of,
    numbered,
    second_binding,
    targets,
)

# Names that the ladder does not cover: settings and defaults, which `test_config.py` compares, the run, and files
OUTSIDE = {
    *("Hyperparameters", "TrainConfig", "train", "train_on_dataset", "train_in_environment"),
    *("save", "load", "load_policy", "load_dynamics", "parts", "D3RLPY_NAMES"),
}

ARITHMETIC: dict[type, str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Pow: "*", ast.FloorDiv: "*", ast.Mod: "//",
}  # fmt: skip
SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.FloorDiv: "//", ast.Mod: "%",
    ast.MatMult: "@",
}  # fmt: skip
COMPARISONS: dict[type, tuple[str, ...]] = {
    ast.Lt: ("<=", ">"), ast.LtE: ("<", ">="), ast.Gt: (">=", "<"), ast.GtE: (">", "<="),
    ast.Eq: ("!=",), ast.NotEq: ("==",), ast.Is: ("is not",), ast.IsNot: ("is",),
}  # fmt: skip
# Calls that may be forgotten: their first argument, or the object whose method they are, replaces them.
DROPPED = {
    "stop_gradient", "detach", "clip", "clamp", "tanh", "exp", "expm1", "log", "log1p", "abs", "square", "sqrt",
    "softplus", "relu", "gelu", "erf", "minimum", "maximum", "mean", "sum", "squeeze", "astype", "dropped", "norm",
    "smallest", "softmax", "sigmoid", "reciprocal", "fold_in", "copy", "flip", "clip_norm", "alikeness", "cumsum",
    "unsqueeze", "item", "requires_grad_", "deepcopy",
}  # fmt: skip
# Functions that are mistaken for each other; a method by its name, a function by its name in JAX's or PyTorch's module
MISTAKEN = {
    "minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "mean": "sum", "sum": "mean",
    "argmin": "argmax", "argmax": "argmin", "exp": "expm1", "expm1": "exp", "log": "log1p", "log1p": "log",
    "tanh": "sin", "square": "abs", "abs": "square", "sqrt": "square", "std": "var", "zeros": "ones",
    "zeros_like": "ones_like", "ones_like": "zeros_like", "ones": "zeros", "triu": "tril",
}  # fmt: skip
RELATED = (("next_observations", "observations"), ("next_actions", "actions"), ("rewards", "terminals"))
# Calls whose arguments are too different to be exchanged
UNLIKE = {
    "map", "create", "getattr", "setattr", "narrow", "scan", "split", "fold_in", "randint", "normal", "uniform",
    "partial", "vmap", "clip", "clamp", "einsum", "range", "param", "scan_updates", "randn", "full",
}  # fmt: skip
# Keywords that affect only the speed
SPEED = {"unroll"}
# The context in which PyTorch builds no graph, and its opposite
NO_GRAPH, GRAPH = "torch.no_grad()", "torch.enable_grad()"


@dataclass(frozen=True)
class Mutant:
    """One small change.

    Attributes:
        function: The function that contains it, such as `TD3_BC.critic_loss`.
        line: The number of the first line that it changes.
        lines: The first and last line of the enclosing statement; None if it runs when the file is imported.
        start: The position of the changed text in the source.
        old: That text.
        new: Its replacement.
        name: Identifies it regardless of the file's layout and the names of its local variables:
            `BC.update: v1 + 1 -> v1 - 1 | v2 = v1 + 1`. The enclosing statement follows the bar.
    """

    function: str
    line: int
    lines: tuple[int, int] | None
    start: int
    old: str
    new: str
    name: str

    def is_passed(self, lines: Collection[int]) -> bool:
        """Whether a test that runs these lines runs the mutant's statement."""
        if self.lines is None:
            return bool(lines)
        first, last = self.lines
        return any(first <= line <= last for line in lines)

    def applied(self, source: str) -> str:
        """The source with the change applied."""
        return source[: self.start] + self.new + source[self.start + len(self.old) :]


def mutants(source: str, framework: str = "jnp") -> list[Mutant]:
    """All mutants of a twin's source, in the order of their lines; `framework` is the module to take functions from."""
    found: dict[tuple[int, str, str], Mutant] = {}
    for mutant in _Finder(Source(source), framework).all():
        if mutant.new == mutant.old:
            continue
        found.setdefault((mutant.start, mutant.old, mutant.new), mutant)
    return list(_numbered(sorted(found.values(), key=lambda m: (m.start, m.name))))


def _numbered(found: Sequence[Mutant]) -> Iterator[Mutant]:
    """Numbers mutants with the same name in the order of their places: the second one's name ends in `#2`."""
    seen: Counter[str] = Counter()
    for mutant in found:
        seen[mutant.name] += 1
        number = seen[mutant.name]
        yield replace(mutant, name=f"{mutant.name} #{number}") if number > 1 else mutant


class _Finder:
    """Walks the tree of a source and makes every possible change to each expression and statement."""

    def __init__(self, source: Source, framework: str) -> None:
        self.source, self.framework = source, framework
        self.text, self.words = source.text, source.words()
        # The current function, the names that it sets, and the line after which its `state` is a new one
        self.function = ""
        self.names: set[str] = set()
        self.local: set[str] = set()
        self.changed = math.inf
        # The lines and the text of the current statement, and the call that is its value
        self.statement = (0, 0)
        self.context = ""
        self.value: ast.AST | None = None

    def all(self) -> Iterator[Mutant]:
        """Yields every mutant, some of them twice."""
        for statement in self.source.tree.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                if statement.name not in OUTSIDE:
                    yield from self.definition(statement)
            elif isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) not in OUTSIDE:
                self.function = ""
                self.enter(statement)
                yield from (replace(mutant, lines=None) for mutant in self.within(statement.value))

    def definition(self, node: ast.FunctionDef | ast.ClassDef) -> Iterator[Mutant]:
        """Mutants of a function or class, without decorators, annotations, docstrings and assertions."""
        outer, self.function = self.function, f"{self.function}.{node.name}".lstrip(".")
        names, self.names = self.names, self.names | bound_names(node)
        local = self.local
        self.changed = second_binding(node, "state") if "self" in self.names else math.inf
        if isinstance(node, ast.FunctionDef):
            # The name `self` is the same everywhere.
            self.local = local | bound_names(node) - {"self"}
            self.statement = (node.body[0].lineno, line_range(node)[1])
            yield from self.with_graphs(node.decorator_list)
            yield from self.block(node.body, {arg.arg for arg in node.args.args})
        else:
            yield from (
                replace(m, lines=None) if m.function == self.function else m for m in self.block(node.body, set())
            )
        self.function, self.names, self.local = outer, names, local

    def block(self, body: Sequence[ast.stmt], bound: set[str]) -> Iterator[Mutant]:
        """Mutants of the statements of a function, class or branch; `bound` contains the names that are already set."""
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                if statement.name not in OUTSIDE:
                    yield from self.definition(statement)
            elif isinstance(statement, ast.If):
                self.enter(statement.test)
                yield self.edit(statement.test, f"not ({self.text(statement.test)})")
                yield from self.within(statement.test)
                yield from self.block(statement.body, bound)
                yield from self.block(statement.orelse, bound)
            elif isinstance(statement, ast.For):
                self.enter(statement.iter)
                yield from self.within(statement.iter)
                yield from self.block(statement.body, bound)
            elif isinstance(statement, ast.With):
                self.enter(statement)
                yield from self.with_graphs([item.context_expr for item in statement.items])
                yield from self.block(statement.body, bound)
            elif not isinstance(statement, ast.Assert) and not is_docstring(statement):
                self.enter(statement)
                if is_removable(statement, bound):
                    yield self.edit(statement, "pass")
                for child in ast.iter_child_nodes(statement):
                    if child is not getattr(statement, "annotation", None):
                        yield from self.within(child)
            bound |= set(targets(statement))

    def with_graphs(self, contexts: Sequence[ast.expr]) -> Iterator[Mutant]:
        """Makes a decorator or a context that disables PyTorch's graph enable it instead."""
        for context in contexts:
            if self.text(context) == NO_GRAPH:
                self.context = NO_GRAPH
                yield self.edit(context, GRAPH)

    def within(self, root: ast.AST) -> Iterator[Mutant]:
        """Mutants of an expression and of all its parts."""
        kinds: dict[type, Callable[[Any], Iterator[Mutant]]] = {
            ast.BinOp: self.arithmetic, ast.UnaryOp: self.unary, ast.Compare: self.comparison, ast.Call: self.call,
            ast.Constant: self.constant, ast.Attribute: self.attribute, ast.Name: self.variable, ast.BoolOp: self.logic,
            ast.IfExp: self.choice, ast.List: self.elements, ast.Tuple: self.elements, ast.Dict: self.entries,
        }  # fmt: skip
        if (change := kinds.get(type(root))) is not None and not is_target(root):
            yield from change(root)
        context = self.context
        for child in ast.iter_child_nodes(root):
            if isinstance(child, ast.keyword) and child.arg in SPEED:
                continue
            if isinstance(child, ast.keyword) and root is self.value:
                self.context = marked(child, self.local)
            if isinstance(child, ast.keyword) and child.arg in ("axis", "dim"):
                yield from self.axis(child.value)
            elif isinstance(root, ast.UnaryOp) and isinstance(root.operand, ast.Constant):
                continue
            elif not isinstance(child, ast.JoinedStr | ast.arguments):
                yield from self.within(child)
            self.context = context

    def enter(self, statement: ast.expr | ast.stmt) -> None:
        """Enters a statement, or the condition of a branch or the iterable of a loop.

        If the statement's value is a call with several keywords, a change in one of them is identified by that keyword.
        """
        self.statement = line_range(statement)
        self.context = "" if isinstance(statement, ast.With) else marked(statement, self.local)
        value = getattr(statement, "value", None)
        self.value = value if isinstance(value, ast.Call) and len(value.keywords) > 1 else None

    def edit(self, node: ast.expr | ast.stmt, new: str) -> Mutant:
        """The mutant with other text in place of a node's."""
        old, start = self.source.text(node), self.source.start(node)
        other = ast.Pass() if new == "pass" else ast.parse(f"({new}\n)", mode="eval")
        change = [f"{marked(node, self.local)} -> {marked(other, self.local)}"]
        name = numbered(" | ".join(change if isinstance(node, ast.stmt) else [*change, self.context]))
        return Mutant(self.function, node.lineno, self.statement, start, old, new, f"{self.function}: {name}")

    # ---- expressions

    def arithmetic(self, node: ast.BinOp) -> Iterator[Mutant]:
        """Uses another operator, swaps the operands, or forgets an operand."""
        left, right, kind = self.parted(node.left), self.parted(node.right), type(node.op)
        if kind not in SIGNS:
            return
        if kind in ARITHMETIC:
            yield self.edit(node, f"({left} {ARITHMETIC[kind]} {right})")
            yield self.edit(node, left)
        if kind in (ast.Add, ast.Mult, ast.Sub):
            yield self.edit(node, right)
        if kind not in (ast.Add, ast.Mult):
            yield self.edit(node, f"({right} {SIGNS[kind]} {left})")

    def parted(self, node: ast.expr) -> str:
        """An operand's source, in parentheses if it is itself an operation."""
        text = self.text(node)
        return f"({text})" if isinstance(node, ast.BinOp | ast.IfExp | ast.Compare | ast.UnaryOp) else text

    def unary(self, node: ast.UnaryOp) -> Iterator[Mutant]:
        """Forgets a sign or a negation; a negative number changes like any constant."""
        if not isinstance(node.operand, ast.Constant):
            yield self.edit(node, self.text(node.operand))
        elif isinstance(value := ast.literal_eval(node), int):
            yield self.edit(node, str(value + 1))
            yield self.edit(node, str(value - 1))
        else:
            yield self.edit(node, f"{1.1 * value:.12g}")
            yield self.edit(node, str(-value))

    def comparison(self, node: ast.Compare) -> Iterator[Mutant]:
        """Uses another comparison."""
        for sign in COMPARISONS.get(type(node.ops[0]), ()) if len(node.ops) == 1 else ():
            yield self.edit(node, f"{self.text(node.left)} {sign} {self.text(node.comparators[0])}")

    def logic(self, node: ast.BoolOp) -> Iterator[Mutant]:
        """Exchanges `and` and `or`."""
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield self.edit(node, f"({word.join(map(self.text, node.values))})")

    def choice(self, node: ast.IfExp) -> Iterator[Mutant]:
        """Always takes the first branch, or always the second."""
        yield self.edit(node, self.text(node.body))
        yield self.edit(node, self.text(node.orelse))

    def constant(self, node: ast.Constant) -> Iterator[Mutant]:
        """Inverts a flag, changes an integer by one, and any other number by a tenth."""
        value = node.value
        if isinstance(value, bool):
            yield self.edit(node, str(not value))
        elif isinstance(value, int):
            yield self.edit(node, str(value + 1))
            yield self.edit(node, str(value - 1) if value else "(-1)")
        elif isinstance(value, float):
            yield self.edit(node, f"{1.1 * value:.12g}" if value else "0.1")

    def axis(self, node: ast.expr) -> Iterator[Mutant]:
        """Uses another axis."""
        others = {"-1": (0, -2), "-2": (-1, 0), "0": (-1, 1), "1": (0, -1), "2": (0, 1)}
        for other in others.get(self.text(node), ()):
            yield self.edit(node, str(other))

    def elements(self, node: ast.List | ast.Tuple) -> Iterator[Mutant]:
        """Forgets an element of a list."""
        if isinstance(node, ast.List) and len(node.elts) > 1 and isinstance(node.ctx, ast.Load):
            texts = [self.text(element) for element in node.elts]
            for i in range(len(texts)):
                yield self.edit(node, f"[{', '.join(texts[:i] + texts[i + 1 :])}]")

    def entries(self, node: ast.Dict) -> Iterator[Mutant]:
        """Exchanges the values of two neighbours."""
        for first, second in pairwise(node.values):
            yield self.edit(first, self.text(second))

    # ---- calls

    def call(self, node: ast.Call) -> Iterator[Mutant]:
        """Forgets a call or a keyword, calls another function, or exchanges arguments."""
        name = name_of(node.func)
        if name in DROPPED:
            yield from self.forgotten(node)
        if name in MISTAKEN:
            yield from self.mistaken(node, MISTAKEN[name])
        if name == "where":
            for case in node.args[1:]:
                yield self.edit(node, self.text(case))
        if name == "Sequential":
            yield from self.without_a_layer(node)
        if isinstance(node.func, ast.Attribute) and re.search("[^_]_$", name) and not is_module(node.func.value):
            # An in-place operation is applied to a copy instead.
            yield self.edit(node.func, f"{self.text(node.func.value)}.{name.rstrip('_')}")
        yield from self.arguments(node)

    def forgotten(self, node: ast.Call) -> Iterator[Mutant]:
        """Replaces the call by its argument."""
        for argument in node.args if name_of(node.func) in ("minimum", "maximum") else node.args[:1]:
            if not isinstance(argument, ast.Starred):
                yield self.edit(node, f"({self.text(argument)})")
        if isinstance(node.func, ast.Attribute) and not is_module(node.func.value):
            yield self.edit(node, self.text(node.func.value))

    def without_a_layer(self, node: ast.Call) -> Iterator[Mutant]:
        """Leaves out one of a sequence of layers."""
        layers = [self.text(layer) for layer in node.args]
        for i in range(len(layers) if len(layers) > 1 else 0):
            yield self.edit(node, f"{self.text(node.func)}({', '.join(layers[:i] + layers[i + 1 :])})")

    def mistaken(self, node: ast.Call, other: str) -> Iterator[Mutant]:
        """Calls another function with the same arguments."""
        if isinstance(node.func, ast.Attribute) and not is_module(node.func.value):
            yield self.edit(node.func, f"{self.text(node.func.value)}.{other}")
        else:
            yield self.edit(node.func, f"{self.framework}.{other}")

    def arguments(self, node: ast.Call) -> Iterator[Mutant]:
        """Exchanges neighbouring arguments, positional or keyword, or forgets a keyword."""
        name = name_of(node.func)
        for first, second in pairwise(node.args) if name not in UNLIKE else ():
            if not {type(first), type(second)} & {ast.Starred, ast.Lambda, ast.Constant}:
                yield self.exchanged(node, first, second)
        named = [keyword for keyword in node.keywords if keyword.arg is not None and keyword.arg not in SPEED]
        for a, b in pairwise(named):
            yield self.exchanged(node, a.value, b.value)
        for keyword in named:
            # A class defined in the file has no defaults.
            if not name[:1].isupper():
                yield self.without(node, keyword)

    def exchanged(self, node: ast.Call, first: ast.expr, second: ast.expr) -> Mutant:
        """The call with two of its arguments exchanged."""
        whole, base = self.text(node), self.source.start(node)
        a, b = (self.source.start(argument) - base for argument in (first, second))
        one, two = self.text(first), self.text(second)
        return self.edit(node, whole[:a] + two + whole[a + len(one) : b] + one + whole[b + len(two) :])

    def without(self, node: ast.Call, keyword: ast.keyword) -> Mutant:
        """The call without one of its keywords."""
        kept = [self.text(argument) for argument in node.args]
        kept += [self.text(other) for other in node.keywords if other is not keyword]
        return self.edit(node, f"{self.text(node.func)}({', '.join(kept)})")

    # ---- names

    def attribute(self, node: ast.Attribute) -> Iterator[Mutant]:
        """Uses a related field."""
        if not is_module(node.value):
            for other in self.words & set(_siblings(node.attr)):
                yield self.edit(node, f"{self.text(node.value)}.{other}")

    def variable(self, node: ast.Name) -> Iterator[Mutant]:
        """Uses a related variable, or the state before an update for the changed one."""
        for other in self.names & set(_siblings(node.id)):
            yield self.edit(node, other)
        if node.id == "state" and node.lineno > self.changed:
            yield self.edit(node, "self")


def _siblings(name: str) -> Iterator[str]:
    """Names with the same shape that this one may be mistaken for; those that do not exist raise an exception."""
    for pair in RELATED:
        if name in pair:
            yield pair[1 - pair.index(name)]
            return
    for one, two in (("_1", "_2"), ("q1", "q2"), ("critic_1", "critic_2")):
        if one in name:
            yield name.replace(one, two)
        elif two in name:
            yield name.replace(two, one)
    if name.endswith("_target"):
        yield name.removesuffix("_target")
    elif any(part in name for part in ("actor", "critic", "value")) and "_" not in re.sub("_[12]", "", name):
        yield f"{name}_target"
    if name.startswith("next_"):
        yield name.removeprefix("next_")
