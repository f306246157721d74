"""`python -m lessons`: tells which teaching pages are not what is measured; `--write` fills them."""

import argparse

from lessons.pages import PAGES, filled


def main() -> None:
    """Compares the pages with what is measured, or writes it into them."""
    parser = argparse.ArgumentParser(prog="python -m lessons", description=__doc__.split(": ")[1])
    parser.add_argument("--write", action="store_true", help="fill docs/ten_steps.md, traps.md and case_studies.md")
    write = parser.parse_args().write
    for page in PAGES:
        old = page.read_text()
        new = filled(old)
        if write:
            page.write_text(new)
        print(f"{page.name}: {'up to date' if new == old else 'written' if write else 'not up to date: use --write'}")


if __name__ == "__main__":
    main()
