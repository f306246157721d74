"""`python -m lessons`: tells which teaching pages are not what is measured; `--write` fills them."""

import argparse
from pathlib import Path

from lessons import cells
from lessons.pages import PAGES, filled


def main() -> None:
    """Compares the pages with what is measured, or writes it into them."""
    parser = argparse.ArgumentParser(prog="python -m lessons", description=__doc__.split(": ")[1])
    parser.add_argument("--write", action="store_true", help="fill the pages in docs, and make the notebooks anew")
    write = parser.parse_args().write
    for page, make in {**dict.fromkeys(PAGES, filled), cells.PAGE: cells.executed}.items():
        compare(page, make(page.read_text()), write)
    for notebook in cells.NOTEBOOKS:
        compare(notebook, cells.as_text(notebook), write)


def compare(path: Path, new: str, write: bool) -> None:
    """Tells whether a file is as it should be, or writes it."""
    same = path.exists() and path.read_text() == new
    if write:
        path.write_text(new)
    print(f"{path.name}: {'up to date' if same else 'written' if write else 'not up to date: use --write'}")


if __name__ == "__main__":
    main()
