"""The page that introduces JAX shows the output of its code; notebooks and figures match the pages."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from lessons import cells
from lessons.ten_steps.board import NUMBERS

PAGE = "# A\n\n```python\nx = 2\n```\n\ntext\n\n```python\nprint(x)\n```\n\n```text\nold\n```\n\nend\n"


def ran(path: Path) -> NotebookNode:
    """A notebook after it was run with Jupyter's own kernel."""
    notebook = nbformat.read(path, as_version=4)
    return NotebookClient(notebook, resources={"metadata": {"path": str(path.parent)}}).execute()


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["primer", "taking_apart"])
def test_a_page_runs_in_jupyter(page: str) -> None:
    """With the same outputs."""
    before = nbformat.read(cells.DOCS / f"{page}.ipynb", as_version=4)
    assert outputs(ran(cells.DOCS / f"{page}.ipynb")) == outputs(before)


@pytest.mark.thorough
def test_the_ten_steps_run_in_jupyter() -> None:
    """Each climbs the ladder, and the last one to its end."""
    _, *boards = outputs(ran(cells.DOCS / "ten_steps.ipynb"))
    assert [board.split(":")[0] for board in boards] == [f"Step {number}" for number in NUMBERS]
    assert all(row.endswith(("green", "green (new)")) for row in boards[-1].splitlines()[1:])
    assert "not there yet" in boards[0]


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
