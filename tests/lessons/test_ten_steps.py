"""The port in ten steps: each step makes its rungs green, none makes another red, and the last is the twin."""

import ast
import inspect
from types import ModuleType

import pytest

from lessons import pages
from lessons.ten_steps.board import GREEN, NUMBERS, PAIR, ROWS, climb, step_module

PAGE = (pages.ROOT / "docs" / "ten_steps.md").read_text()
# Lines that a step may add or take away; the first step is a whole file.
FEW = 55
# What the twin has besides: the settings, which the steps import, and what is neither a network nor an update
NOT_PORTED = {"Hyperparameters", "TrainConfig", "act", "train"}


@pytest.mark.thorough
@pytest.mark.parametrize("number", NUMBERS)
def test_step_turns_its_rungs_green(number: int) -> None:
    """Those that the page names, from red; all others stay what they were."""
    green = {row for row in ROWS if climb(number, row).green}
    before = {row for row in ROWS if number > 1 and climb(number - 1, row).green}
    assert green == before | set(GREEN[number])
    assert not before & set(GREEN[number])


def test_every_rung_is_reached() -> None:
    """By exactly one step."""
    assert sorted(row for rows in GREEN.values() for row in rows) == sorted(ROWS)


@pytest.mark.parametrize("number", NUMBERS[1:])
def test_step_changes_a_few_lines(number: int) -> None:
    """And takes nothing back: what a step adds stands in the file until the last, or is replaced once."""
    lines = [line for line in pages.changes(number) if line.startswith(("+", "-"))]
    assert 0 < len(lines) <= FEW


def definitions(module: ModuleType) -> dict[str, str]:
    """The source of everything that a file defines at its top level, comments above it included, by name."""
    source = inspect.getsource(module)
    lines, found = source.splitlines(), {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.FunctionDef | ast.ClassDef):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]) - 1
        while lines[first - 1].startswith("# "):
            first -= 1
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else node.name
        found[name] = "\n".join(lines[first : node.end_lineno])
    return found


def test_the_last_step_is_the_twin() -> None:
    """Character by character, but for the settings and what runs a training; in the same order."""
    twin = {name: text for name, text in definitions(PAIR.jax).items() if name not in NOT_PORTED}
    assert list(definitions(step_module(10)).items()) == list(twin.items())


@pytest.mark.thorough
def test_page_is_filled() -> None:
    """`python -m lessons --write` was run after the last change."""
    assert pages.filled(PAGE) == PAGE
    for number in NUMBERS:
        assert PAGE.count(f"<!-- lesson: step {number} -->") == 1
