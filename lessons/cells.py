"""Pages whose code runs: each block of Python after the ones before it, as the cells of a notebook do.

What a block prints stands below it as a block of text. The same page is a notebook.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "primer.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
_CELL = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
# Runs the cells of standard input one after the other, and prints a list of what each one printed.
_RUN = """
import contextlib, io, json, sys
names, printed = {"__name__": "__main__"}, []
for code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "<cell>", "exec"), names)
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def printed(cells: list[str]) -> list[str]:
    """What each cell prints, in a fresh process.

    Raises:
        subprocess.CalledProcessError: A cell raises an exception, which is on standard error.
    """
    done = subprocess.run(
        [sys.executable, "-c", _RUN], input=json.dumps(cells), cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def executed(page: str) -> str:
    """A page with what each of its cells prints below it."""
    texts = iter(printed([code for code, _ in _CELL.findall(page)]))

    def with_text(cell: re.Match) -> str:
        text = next(texts)
        return f"```python\n{cell[1]}```\n" + (f"\n```text\n{text}```\n" if text else "")

    return _CELL.sub(with_text, page)


def notebook(page: str) -> NotebookNode:
    """A page as a notebook that has run. Links and pictures are those of the page, which lies in the same folder."""
    cells, end = [], 0
    for cell in _CELL.finditer(page):
        cells.append(new_markdown_cell(page[end : cell.start()].strip()))
        outputs = [new_output("stream", name="stdout", text=cell[2])] if cell[2] else []
        cells.append(new_code_cell(cell[1].rstrip("\n"), outputs=outputs, execution_count=len(cells) // 2 + 1))
        end = cell.end()
    cells.append(new_markdown_cell(page[end:].strip()))
    for number, made in enumerate(cells):
        # nbformat draws names at random: a notebook that is made again would be another one.
        made["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def as_text(page: str) -> str:
    """The notebook's file."""
    return nbformat.writes(notebook(page)) + "\n"
