"""Carries a change of the twin into the ten steps: the last one is the twin, and the others hold many of its lines."""

import ast
from difflib import SequenceMatcher
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TWIN = ROOT / "corl_jax" / "td3_bc.py"
STEPS = [ROOT / "lessons" / "ten_steps" / f"step_{number:02d}.py" for number in range(1, 11)]
# What the twin has besides: the settings, which the steps import, and what is neither a network nor an update
NOT_PORTED = {"Hyperparameters", "TrainConfig", "act", "train"}


class NotCarried(Exception):
    """A step must be changed by hand."""


def carried() -> dict[Path, str]:
    """Every step's file as it should be.

    Raises:
        NotCarried: The twin defines something that no step does, or a step has other lines where the twin changed.
    """
    *others, last = STEPS
    old, twin = last.read_text(encoding="utf-8"), TWIN.read_text(encoding="utf-8")
    wanted = {name: text for name, text in definitions(twin).items() if name not in NOT_PORTED}
    held = definitions(old)
    if list(wanted) != list(held):
        raise NotCarried(f"{last.name} defines {', '.join(held)}; the twin defines {', '.join(wanted)}")
    new = old
    for name, text in wanted.items():
        new = new.replace(f"\n{held[name]}\n", f"\n{text}\n", 1)
    found = {last: new}
    for path in others:
        try:
            lines = with_changes(*(text.splitlines() for text in (path.read_text(encoding="utf-8"), old, new)))
        except NotCarried as error:
            raise NotCarried(f"change {path.name} and {last.name} as {TWIN.name} was changed: {error}") from None
        found[path] = "\n".join([*lines, ""])
    return found


def definitions(source: str) -> dict[str, str]:
    """The text of everything that a file defines at its top level, comments above it included, by name."""
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


def with_changes(step: list[str], old: list[str], new: list[str]) -> list[str]:
    """The lines of a step with the changes between two texts of the last one. What it does not hold stays out of it.

    Raises:
        NotCarried: It holds a part of what changed.
    """
    blocks = SequenceMatcher(None, old, step, autojunk=False).get_matching_blocks()
    places = {block.a + i: block.b + i for block in blocks for i in range(block.size)}
    changed = list(step)
    changes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    # From the end, so that places above stay what they are.
    for kind, start, end, new_start, new_end in reversed(changes):
        held = [places[i] for i in range(start, end) if i in places]
        if kind == "insert" and start in places:
            # A new line goes with the one below it.
            changed[places[start] : places[start]] = new[new_start:new_end]
        elif kind == "replace" and end - start == new_end - new_start:
            for i, line in zip(range(start, end), new[new_start:new_end], strict=True):
                if i in places:
                    changed[places[i]] = line
        elif kind in ("replace", "delete") and held:
            if held != list(range(held[0], held[0] + end - start)):
                raise NotCarried(f"of these lines it has some: {old[start:end]}")
            changed[held[0] : held[-1] + 1] = new[new_start:new_end]
    return changed
