"""Finds a small change to a JAX file that makes a failing check pass: the reverse of explaining somebody's port.

For a port, our twin is changed until it gives the port's numbers. Here the file itself is changed until it gives
PyTorch's.
"""

import ast
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from parity_tests.mutants.operators import Mutant, mutants
from parity_tests.mutants.planting import planted
from parity_tests.mutants.syntax import Source, is_target, name_of
from parity_tests.pair import Pair
from port_checker.explaining.changes import Change
from port_checker.explaining.counterparts import taken_over
from port_checker.explaining.mechanical import is_concerned
from port_checker.explaining.timing import off_by_one, reordered

# Nodes that may lack a sign or a stop_gradient, and states that are mistaken for each other
TERMS = (ast.Call, ast.Name, ast.Attribute)
STATES = {"self": "state", "state": "self"}
# The loop, which decides what an update gets by its number
LOOP = "train_interval"
# The largest number of successful changes to report
MOST = 3


def repairs(pair: Pair, rung: str, wrong: str, passes: Callable[[ModuleType], bool], seconds: float) -> list[Change]:
    """Finds changes after which a check passes, as far as time allows.

    Args:
        pair: The pair whose JAX file is changed.
        rung: The check.
        wrong: The first of its numbers that is wrong, such as `critic_loss by critic_1`.
        passes: Whether a changed file passes.
        seconds: The limit in processor time.
    """
    end, path = time.process_time() + seconds, Path(str(pair.jax.__file__))
    source, found = path.read_text(encoding="utf-8"), dict[str, Change]()
    torch_source = Path(str(pair.torch.__file__)).read_text(encoding="utf-8")
    # With non-ASCII text, offsets in the syntax tree differ from offsets in the text.
    ascii_only = source.isascii() and torch_source.isascii()
    for mutant in candidates(source, torch_source, pair, rung, wrong) if ascii_only else ():
        if time.process_time() > end or len(found) == MOST:
            break
        with suppress(Exception):
            # Many changes do not run at all.
            if passes(planted(f"{path.name} with a change", mutant.applied(source))):
                # The same change may be found as a whole statement and as an expression in it.
                found.setdefault(ast.dump(ast.parse(mutant.applied(source))), _told(mutant, source, path.name))
    return list(found.values())


def _told(mutant: Mutant, source: str, file: str) -> Change:
    """A change, shown with the complete lines around it."""
    first, end = source.rfind("\n", 0, mutant.start) + 1, source.find("\n", mutant.start + len(mutant.old))
    changed = mutant.applied(source)
    old, new = source[first:end], changed[first : end + len(changed) - len(source)]
    return Change(f"in `{mutant.function}`", f"{file}:{mutant.line}", old, new)


def candidates(source: str, torch_source: str, pair: Pair, rung: str, wrong: str) -> list[Mutant]:
    """Changes in the functions that a check depends on, beginning with the wrong loss or with `update`.

    The PyTorch file's statements come first, then numbers that may be off by one. Of the others, changes in lines about
    the wrong part come first for each function, and then changes that undo common mistakes.
    """
    own = "update" if rung in ("update", "log") else wrong.partition(" by ")[0]
    part = wrong.partition(".")[0].removesuffix("_optimizer")
    parsed = Source(source)
    bodies = {node.name: node for node in ast.walk(parsed.tree) if isinstance(node, ast.FunctionDef)}
    called = (
        {name_of(node.func) for node in ast.walk(bodies[own]) if isinstance(node, ast.Call)} if own in bodies else ()
    )

    lines = source.splitlines()

    def distance(mutant: Mutant) -> tuple[int, bool]:
        function = mutant.function.rpartition(".")[2]
        return 0 if function == own else 1 if function in called else 2, part not in lines[mutant.line - 1]

    found: list[Mutant] = []
    timed = list(off_by_one(parsed))
    loops = [change for change in timed if change.function == LOOP and own == "update"]
    for kind in (
        taken_over(parsed, Source(torch_source)),
        timed,
        [*_undoing(parsed, rung), *reordered(parsed, part), *mutants(source)],
    ):
        concerned = [change for change in kind if is_concerned(change.function.rpartition(".")[2], pair, rung, wrong)]
        found += sorted(concerned, key=distance)
        found += loops if kind is timed else []
    return found


def _undoing(source: Source, rung: str) -> Iterator[Mutant]:
    """Yields changes that undo common mistakes.

    They swap a loss's argument and the state's part of that name, which only one of them differentiates. They swap the
    states before and after a step, or add a missing sign or stop_gradient.
    """
    new = {"loss": "(-{})", "gradient": "jax.lax.stop_gradient({})"}.get(rung)
    for owner in [node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef)]:
        body = [statement for statement in owner.body if not isinstance(statement, ast.Assert)]
        nodes = [node for statement in body for node in ast.walk(statement)]
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        # A called function, or an object whose attribute is read, is no term by itself.
        inner = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        inner |= {
            id(node.value) for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        arguments = {argument.arg for argument in owner.args.args} - STATES.keys()
        for node in nodes:
            if isinstance(node, ast.Attribute) and name_of(node.value) in STATES and node.attr in arguments:
                yield _edit(source, owner, node, node.attr)
            if isinstance(node, ast.Name) and node.id in arguments and owner.args.args[0].arg in STATES:
                yield _edit(source, owner, node, f"{owner.args.args[0].arg}.{node.id}")
        for node in nodes:
            if isinstance(node, ast.Name) and STATES.get(node.id) in names and not is_target(node):
                yield _edit(source, owner, node, STATES[node.id])
            if new and isinstance(node, TERMS) and id(node) not in inner and not is_target(node):
                yield _edit(source, owner, node, new.format(source.text(node)))


def _edit(source: Source, owner: ast.FunctionDef, node: ast.expr, new: str) -> Mutant:
    old = source.text(node)
    return Mutant(owner.name, node.lineno, None, source.start(node), old, new, f"{owner.name}: {old} -> {new}")
