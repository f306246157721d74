"""`make derived`: updates all files in the repository that are made from code, results or other pages.

A file is written only if its content changes. Tests name the files that are out of date.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import house
import picture
import primer
import sketches
from benchmarks import report
from lessons import carrying, cells
from parity_tests.engine.precision import both_in
from parity_tests.pairs import PAIRS
from port_checker.finding.template import template

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
# A file, and the content that it should have
Made = tuple[Path, bytes]
Kind = Callable[[], Iterator[Made]]


def tables() -> Iterator[Made]:
    """The pages with measured results."""
    for page in report.PAGES:
        yield page, report.filled(page.read_text(encoding="utf-8")).encode()


def figures() -> Iterator[Made]:
    """Charts, drawings and the map of the house."""
    drawn = report.charts() | {name: primer.drawn(name) for name in primer.FIGURES}
    drawn |= {f"sketches/{name}": sketches.drawn(name) for name in sketches.SKETCHES}
    for name, text in {**drawn, "side_by_side": picture.drawn()}.items():
        yield FIGURES / f"{name}.svg", text.encode()
    yield house.PICTURE, house.current()


def exercise() -> Iterator[Made]:
    """The exercise that starts with the checker's template."""
    with both_in("float64"):
        yield ROOT / "exercises" / "17_awac" / "exercise.py", template(PAIRS["awac"]).encode()


def steps() -> Iterator[Made]:
    """The ten steps, with changes to the twin carried into them."""
    for path, text in carrying.carried().items():
        yield path, text.encode()


def lessons() -> Iterator[Made]:
    """The teaching pages with their code and its measurements."""
    # Imported late, because it imports the steps.
    from lessons import pages

    for page in pages.PAGES:
        yield page, pages.filled(page.read_text(encoding="utf-8")).encode()


def notebooks() -> Iterator[Made]:
    """The pages with executable code and its output, and the notebooks."""
    for page in cells.PAGES:
        yield page, cells.executed(page.read_text(encoding="utf-8")).encode()
    for notebook in cells.NOTEBOOKS:
        yield notebook, cells.as_text(notebook).encode()


# The order matters: a notebook is made from a page that is made from a step.
KINDS: tuple[Kind, ...] = (tables, figures, exercise, steps, lessons, notebooks)


def stale(kind: Kind) -> Iterator[Made]:
    """The files of a kind that are missing or out of date."""
    for path, content in kind():
        if not path.exists() or path.read_bytes() != content:
            yield path, content


def named(kind: Kind) -> str:
    """The names of a kind's missing or outdated files."""
    return ", ".join(path.relative_to(ROOT).as_posix() for path, _ in stale(kind))


def main() -> None:
    """Writes all missing or outdated files."""
    for kind in KINDS:
        for path, content in stale(kind):
            path.write_bytes(content)
            print(f"made anew: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
