"""Pages whose code runs: each block of Python or of commands after the ones before it, as the cells of a notebook do.

What a block prints is below it as a block of text. Some of these pages are notebooks too, and so are the ten steps.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "port"
PAGE = DOCS / "primer.md"
APART = DOCS / "taking_apart.md"
GUIDES = ROOT / "docs" / "guides"
PAGES = (PAGE, APART, DOCS / "beyond.md", DOCS / "from_jax.md", GUIDES / "python.md", GUIDES / "own.md")
_CELL = re.compile(r"```(python|bash)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
# What differs from machine to machine in what a command prints, and from run to run in the name of its folder
_NUMBER = re.compile(r"-?\b(?:[0-9a-f]{8}|[0-9a-f]{64})\b|-?\d+(?:\.\d+)?(?:e-?\d+)?")
_STEP = re.compile(r"<!-- lesson: step (\d+) -->.*?<!-- /lesson -->\n", re.DOTALL)
# Runs the cells of standard input one after the other, and prints a list of what each one printed.
_RUN = """
import contextlib, io, json, subprocess, sys
names, printed = {"__name__": "__main__"}, []
for language, code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if language == "bash":
            print(subprocess.check_output(["bash", "-ec", code], text=True), end="")
        else:
            exec(compile(code, "<cell>", "exec"), names)
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def printed(cells: list[tuple[str, str]]) -> list[str]:
    """What each cell prints, in a fresh process, and in an empty folder that takes the runs that cells make.

    Args:
        cells: Language and code of each.

    Raises:
        subprocess.CalledProcessError: A cell raises an exception, which is on standard error.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _RUN],
            input=json.dumps(cells),
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            text=True,
            stdout=subprocess.PIPE,
            check=True,
        )
    return json.loads(done.stdout)


def executed(page: str) -> str:
    """A page with what each of its cells prints below it; what a command printed stays where only numbers differ."""
    texts = iter(printed([(language, code) for language, code, _ in _CELL.findall(page)]))

    def with_text(cell: re.Match) -> str:
        language, code, before = cell.groups("")
        text = next(texts)
        if language == "bash" and _NUMBER.sub("#", text) == _NUMBER.sub("#", before):
            text = before
        return f"```{language}\n{code}```\n" + (f"\n```text\n{text}```\n" if text else "")

    return _CELL.sub(with_text, page)


def as_notebook(page: str) -> NotebookNode:
    """A page as a notebook that has run."""
    cells: list[NotebookNode] = []
    end = 0
    for cell in _CELL.finditer(page):
        cells += [new_markdown_cell(page[end : cell.start()].strip()), _code(cell[2], cell[3], len(cells) // 2 + 1)]
        end = cell.end()
    return _notebook([*cells, new_markdown_cell(page[end:].strip())])


def ten_steps(page: str) -> NotebookNode:
    """The page of the ten steps as a notebook that climbs the ladder with each of them. It has not run."""
    cells, end = [_code("from lessons.ten_steps.board import board")], 0
    for step in _STEP.finditer(page):
        cells += [new_markdown_cell(page[end : step.end()].strip()), _code(f"print(board({step[1]}))")]
        end = step.end()
    return _notebook([*cells, new_markdown_cell(page[end:].strip())])


NOTEBOOKS = {
    PAGE.with_suffix(".ipynb"): as_notebook,
    APART.with_suffix(".ipynb"): as_notebook,
    DOCS / "ten_steps.ipynb": ten_steps,
}


def as_text(path: Path) -> str:
    """What a notebook's file holds, made from its page."""
    return nbformat.writes(NOTEBOOKS[path](path.with_suffix(".md").read_text())) + "\n"


def _code(source: str, printed: str | None = None, count: int | None = None) -> NotebookNode:
    outputs = [new_output("stream", name="stdout", text=printed)] if printed else []
    return new_code_cell(source.rstrip("\n"), outputs=outputs, execution_count=count)


def _notebook(cells: list[NotebookNode]) -> NotebookNode:
    """Links and pictures are those of the page, which lies in the same folder."""
    for number, cell in enumerate(cells):
        # nbformat draws names at random: a notebook that is made again would be another one.
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
