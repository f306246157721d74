"""The teaching pages: what stands in them between two comments is made from code and measurements.

A place is `<!-- lesson: KIND NAME -->` up to `<!-- /lesson -->`. Kind and name are:

- `step 3`: what a step of the port changes, and which rung it makes green,
- `torch Critic`: a piece of the PyTorch file,
- `board`: all rungs of all steps,
- `traps`: the table,
- `trap gelu` and `case awac`: code and measured sizes.
"""

import ast
import difflib
import inspect
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from lessons import measured
from lessons.case_studies import CASES
from lessons.measured import Error, Figure
from lessons.ten_steps.board import GREEN, NUMBERS, PAIR, ROWS, climb, in_words, step_module
from lessons.traps import TRAPS
from parity_tests.engine.precision import both_in

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "docs" / "port" / f"{name}.md" for name in ("ten_steps", "traps", "case_studies")]
_PLACE = re.compile(r"(<!-- lesson: (\w+)(?: ([\w.]+))? -->\n)(.*?)(<!-- /lesson -->)", re.DOTALL)


def filled(page: str) -> str:
    """A page with its places filled.

    Raises:
        KeyError: A place is of an unknown kind, or names what there is not.
    """
    return _PLACE.sub(lambda place: f"{place[1]}\n{KINDS[place[2]](place[3])}\n\n{place[5]}", page)


def fenced(language: str, text: str) -> str:
    """Text as a block of code."""
    return f"```{language}\n{text.strip(chr(10))}\n```"


# ---- the port in ten steps -----------------------------------------------------------------------------------------


def lines_of(number: int) -> list[str]:
    """A step's file without its docstring, which names the step."""
    return inspect.getsource(step_module(number)).splitlines()[2:]


def changes(number: int) -> list[str]:
    """What a step changes in the file of the one before, as lines of a diff; a gap between two places is `@@`."""
    lines = difflib.unified_diff(lines_of(number - 1), lines_of(number), n=2, lineterm="")
    return ["@@" if line.startswith("@@") else line for line in list(lines)[3:]]


def step(name: str) -> str:
    """What a step adds, and the rungs that it makes green."""
    number = int(name)
    code = fenced("diff", "\n".join(changes(number))) if number > 1 else fenced("python", "\n".join(lines_of(1)))
    return "\n".join([code, "", *(turned_green(number, row) for row in GREEN[number])])


def turned_green(number: int, row: str) -> str:
    """One line: what a row said before a step and says after it."""
    before = in_words(climb(number - 1, row)) if number > 1 else "not there yet"
    return f"- *{row}*: {before} → **{in_words(climb(number, row))}**"


def board(_: str) -> str:
    """A line for each row of the board, a column for each step."""
    lines = [f"| | {' | '.join(map(str, NUMBERS))} |", "|---|" + "---|" * len(NUMBERS)]
    for row in ROWS:
        marks = ("●" if climb(number, row).green else "·" for number in NUMBERS)
        lines.append(f"| {row} | {' | '.join(marks)} |")
    return "\n".join(lines)


def torch_source(name: str) -> str:
    """A class or a function of the PyTorch file, or a method, `TD3_BC.update`, in what is left of its class."""
    source = inspect.getsource(PAIR.torch)
    *classes, _ = path = name.split(".")
    body: Sequence[ast.stmt] = ast.parse(source).body
    for part in path:
        found = {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}[part]
        body = found.body
    start = min([found.lineno, *(decorator.lineno for decorator in found.decorator_list)])
    lines = source.splitlines()[start - 1 : found.end_lineno]
    return fenced("python", "\n".join([*(f"class {outer}:\n    ...\n" for outer in classes), *lines]))


# ---- traps and case studies ----------------------------------------------------------------------------------------


@cache
def measure(module: ModuleType) -> list[Error | Figure]:
    """What a trap or a case measures, in double precision."""
    with both_in("float64"):
        return module.measure()


def title(module: ModuleType) -> str:
    """The first line of a module's docstring, without its full stop."""
    return (inspect.getdoc(module) or "").splitlines()[0].removesuffix(".")


def shown(module: ModuleType) -> str:
    """The functions of a module that have no underscore before their name, in the order of the file."""
    functions = [f for f in vars(module).values() if inspect.isroutine(f) and f.__module__ == module.__name__]
    public = [f for f in functions if not f.__name__.startswith("_") and f.__name__ != "measure"]
    return fenced("python", "\n\n\n".join(inspect.getsource(inspect.unwrap(f)).strip() for f in public))


def anchor(heading: str) -> str:
    """The fragment by which a heading is linked to."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def traps(_: str) -> str:
    """A row for each trap."""
    lines = ["| trap | PyTorch | JAX | off by | effect on a training run |", "|---|---|---|---|---|"]
    for trap in TRAPS.values():
        off, _ = measured.in_words(measure(trap)[0])
        name = title(trap)
        lines.append(f"| [{name}](#{anchor(name)}) | {trap.PYTORCH} | {trap.JAX} | {off} | {trap.SHOWS} |")
    return "\n".join(lines)


def code_and_sizes(module: ModuleType) -> str:
    """A trap's or a case's code and what was measured."""
    return f"{shown(module)}\n\n{measured.table(measure(module))}"


KINDS: dict[str, Callable[[str], str]] = {
    "step": step,
    "board": board,
    "torch": torch_source,
    "traps": traps,
    "trap": lambda name: code_and_sizes(TRAPS[name]),
    "case": lambda name: code_and_sizes(CASES[name]),
}
