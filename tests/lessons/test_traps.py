"""The page of traps contains each of them, and names mistakes that are planted."""

import re

from lessons import pages
from lessons.traps import TRAPS
from parity_tests.mutants.planted import MISTAKES

PAGE = (pages.ROOT / "docs" / "port" / "traps.md").read_text()


def test_every_trap_stands_on_the_page() -> None:
    """Once, under its own title."""
    for name, trap in TRAPS.items():
        assert PAGE.count(f"\n## {pages.title(trap)}\n") == 1
        assert PAGE.count(f"<!-- lesson: trap {name} -->") == 1


def test_planted_mistakes_have_these_names() -> None:
    """The page names mistakes that are planted in the twins as well."""
    (planted,) = re.findall(r"also planted in our twins.*?called\s(.*?)\.\n", PAGE, re.DOTALL)
    names = {mistake.name for mistake in MISTAKES}
    assert set(re.findall(r"\*(.*?)\*", planted.replace("\n", " "))) <= names
