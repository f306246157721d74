"""The page that introduces JAX: its code prints what stands below it, and its notebook and figures are the page's."""

import nbformat
import pytest
from nbclient import NotebookClient

import primer
from lessons import cells

PAGE = "# A\n\n```python\nx = 2\n```\n\ntext\n\n```python\nprint(x)\n```\n\n```text\nold\n```\n\nend\n"


def test_the_page_shows_what_its_code_prints() -> None:
    """`python -m lessons --write` writes it anew."""
    page = cells.PAGE.read_text()
    assert cells.executed(page) == page


def test_the_notebook_is_the_page() -> None:
    """`python -m lessons --write` writes it anew."""
    assert cells.NOTEBOOK.read_text() == cells.as_text(cells.PAGE.read_text())


@pytest.mark.thorough
def test_the_notebook_runs() -> None:
    """In Jupyter's own kernel, with the same outputs."""
    notebook = nbformat.read(cells.NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    before = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    NotebookClient(notebook, resources={"metadata": {"path": str(cells.PAGE.parent)}}).execute()
    after = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert [joined(outputs) for outputs in after] == [joined(outputs) for outputs in before]


def joined(outputs: list) -> str:
    """What a cell printed; the kernel may send it in several pieces."""
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def test_a_cell_knows_the_ones_before_it_and_shows_what_it_prints() -> None:
    assert cells.executed(PAGE) == PAGE.replace("old", "2")


def test_a_notebook_has_text_and_code_in_turn() -> None:
    made = cells.notebook(cells.executed(PAGE)).cells
    assert [(cell.cell_type, cell.source) for cell in made] == [
        ("markdown", "# A"),
        ("code", "x = 2"),
        ("markdown", "text"),
        ("code", "print(x)"),
        ("markdown", "end"),
    ]
    assert made[3].outputs[0].text == "2\n"


@pytest.mark.parametrize("name", primer.FIGURES)
def test_a_figure_is_as_it_is_drawn(name: str) -> None:
    """`python docs/_ext/primer.py` draws it anew."""
    assert (primer.DOCS / f"{name}.svg").read_text(encoding="utf-8") == primer.drawn(name)
