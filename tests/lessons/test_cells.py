"""The page that introduces JAX shows the output of its code; notebooks and figures match the pages."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from lessons import cells

PAGE = "# A\n\n```python\nx = 2\n```\n\ntext\n\n```python\nprint(x)\n```\n\n```text\nold\n```\n\nend\n"


def ran(path: Path) -> NotebookNode:
    """A notebook after it was run with Jupyter's own kernel."""
    notebook = nbformat.read(path, as_version=4)
    return NotebookClient(notebook, resources={"metadata": {"path": str(path.parent)}}).execute()


@pytest.mark.thorough
def test_a_page_runs_in_jupyter() -> None:
    """With the same outputs."""
    before = nbformat.read(cells.DOCS / "primer.ipynb", as_version=4)
    assert outputs(ran(cells.DOCS / "primer.ipynb")) == outputs(before)


def outputs(notebook: NotebookNode) -> list[str]:
    """The printed text of each code cell."""
    return [joined(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def joined(outputs: list) -> str:
    """A cell's printed text, which the kernel may send in several pieces."""
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def test_a_cell_knows_the_ones_before_it_and_shows_what_it_prints() -> None:
    assert cells.executed(PAGE) == PAGE.replace("old", "2")


def test_a_notebook_has_text_and_code_in_turn() -> None:
    made = cells.as_notebook(cells.executed(PAGE)).cells
    assert [(cell.cell_type, cell.source) for cell in made] == [
        ("markdown", "# A"),
        ("code", "x = 2"),
        ("markdown", "text"),
        ("code", "print(x)"),
        ("markdown", "end"),
    ]
    assert made[3].outputs[0].text == "2\n"
