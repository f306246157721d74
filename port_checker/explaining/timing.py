"""Changes to when something happens: a step earlier or later, or statements of an update in another order."""

import ast
from collections.abc import Iterator, Sequence

from parity_tests.mutants.operators import OUTSIDE, Mutant
from parity_tests.mutants.syntax import Source, is_module, is_target, name_of, targets

# The function whose statements have an order that matters, and the longest run of them that is exchanged as one
ORDERED, LONGEST = "update", 2


def off_by_one(source: Source) -> Iterator[Mutant]:
    """Yields changes of whole numbers by one, wherever a function divides something that depends on them.

    These are the arguments of functions outside classes, such as a schedule's step, and the indices of loops. In front
    of `%`, they are all numbers.
    """
    seen: set[ast.AST] = set()
    for owner in _functions(source.tree):
        counters = _counters(owner)
        for node in ast.walk(owner) if owner.name not in OUTSIDE else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mod) and node not in seen:
                seen.add(node)
                every = isinstance(node.op, ast.Mod)
                for number in _numbers(node.left):
                    names = {part.id for part in ast.walk(number) if isinstance(part, ast.Name)}
                    if every or names & counters:
                        yield from (_edit(source, owner.name, number, new) for new in _shifted(source, number))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _counters(owner: ast.FunctionDef) -> set[str]:
    """The indices of a function's loops, and its arguments if it is no method."""
    loops = [node for node in ast.walk(owner) if isinstance(node, ast.For | ast.comprehension)]
    found = {name for loop in loops if "range" in ast.unparse(loop.iter) for name in targets(loop.target)}
    arguments = [argument.arg for argument in owner.args.args]
    return found if arguments[:1] == ["self"] else found | set(arguments)


def _numbers(node: ast.expr) -> Iterator[ast.expr]:
    """Yields the variables of an expression, and its sums as a whole."""
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    if is_sum or (isinstance(node, ast.Name) and not is_module(node)):
        yield node
    elif not isinstance(node, ast.Attribute):
        called = [node.func] if isinstance(node, ast.Call) else []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and child not in called:
                yield from _numbers(child)


def _added(node: ast.expr) -> int | None:
    """The whole number that an expression adds to or subtracts from another one; None for any other expression."""
    match node:
        case ast.BinOp(op=ast.Add(), right=ast.Constant(value=int(number))):
            return number
        case ast.BinOp(op=ast.Sub(), right=ast.Constant(value=int(number))):
            return -number
    return None


def _shifted(source: Source, node: ast.expr) -> Iterator[str]:
    """Yields a number that is one less, and one that is one more."""
    added = _added(node)
    start = source.text(node.left if isinstance(node, ast.BinOp) and added is not None else node)
    for number in ((added or 0) - 1, (added or 0) + 1):
        whole = f"{start} {'+' if number > 0 else '-'} {abs(number)}" if number else start
        # A sum is in parentheses already.
        yield whole if isinstance(node, ast.BinOp) else f"({whole})"


def reordered(source: Source, part: str) -> Iterator[Mutant]:
    """Yields changes that exchange neighbouring statements of an update, or runs of them, from the shortest on.

    One of the short runs names the part that is wrong. An exchange is left out if it cannot matter, because neither
    side reads what the other one writes. It is also left out if a statement would read a name that has no value yet.
    """
    for owner in _functions(source.tree):
        if owner.name == ORDERED:
            bound = {argument.arg for argument in owner.args.args}
            for runs in sorted(_exchanges(owner.body, bound), key=lambda runs: sorted(map(len, runs))):
                moved = [statement for run in runs if len(run) <= LONGEST for statement in run]
                if any(part in source.text(statement) for statement in moved):
                    yield _exchanged(source, owner.name, *runs)


def _exchanges(body: Sequence[ast.stmt], bound: set[str]) -> Iterator[tuple[Sequence[ast.stmt], Sequence[ast.stmt]]]:
    """Yields pairs of neighbouring runs, one of which has at most `LONGEST` statements."""
    for middle in range(1, len(body)):
        for start in range(middle):
            known = bound | {name for statement in body[:start] for name in targets(statement)}
            for end in range(middle + 1, len(body) + 1):
                first, second = body[start:middle], body[middle:end]
                if min(len(first), len(second)) <= LONGEST and _matters(first, second, known):
                    yield first, second
    for place, statement in enumerate(body):
        if isinstance(statement, ast.If):
            known = bound | {name for before in body[:place] for name in targets(before)}
            yield from _exchanges(statement.body, known)


def _matters(first: Sequence[ast.stmt], second: Sequence[ast.stmt], known: set[str]) -> bool:
    """Whether two runs can be exchanged, and give something else then."""
    if any(isinstance(statement, ast.Return) for statement in second):
        return False
    (read, written), (later, over) = _used(first), _used(second)
    needed = {name for i, statement in enumerate(second) for name in _used([statement])[0] - _used(second[:i])[1]}
    return needed & written <= known and bool(later & written or read & over)


def _used(statements: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    """The names that statements read, and those that they give a value."""
    names = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Name)]
    augmented = [node.target for node in statements if isinstance(node, ast.AugAssign)]
    read = {name.id for name in names if not is_target(name)} | {name_of(target) for target in augmented}
    return read, {name.id for name in names if is_target(name)}


def _exchanged(source: Source, function: str, first: Sequence[ast.stmt], second: Sequence[ast.stmt]) -> Mutant:
    start, end = source.start(first[0]), source.end(second[-1])
    one, two = (source.whole[source.start(run[0]) : source.end(run[-1])] for run in (first, second))
    between = source.whole[source.end(first[-1]) : source.start(second[0])]
    old, new = source.whole[start:end], two + between + one
    return Mutant(function, first[0].lineno, None, start, old, new, f"{function}: {old} -> {new}")


def _edit(source: Source, function: str, node: ast.expr, new: str) -> Mutant:
    old = source.text(node)
    return Mutant(function, node.lineno, None, source.start(node), old, new, f"{function}: {old} -> {new}")
