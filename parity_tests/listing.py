"""The lists of pairs on the site; `make derived` inserts them there."""

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.frameworks.twins import page_of


def of_family(family: Family) -> list[Pair]:
    """The pairs of a family, sorted by title."""
    return sorted((pair for pair in PAIRS.values() if pair.family is family), key=lambda pair: pair.title.lower())


def table() -> str:
    """A Markdown table for the site's front page: one row for each family, with links to its algorithms' pages."""
    lines = ["| family | the case for it | algorithms |", "|---|---|---|"]
    for family in Family:
        links = ", ".join(f"[{short(pair)}](algorithms/{page_of(pair.name)}.md)" for pair in of_family(family))
        lines.append(f"| {family.title} | {family.case} | {links} |")
    return "\n".join(lines)


def short(pair: Pair) -> str:
    """A pair's title without the name of its family."""
    return pair.title.removesuffix(f", {pair.family.title.lower()}")


def toctree() -> str:
    """The algorithms' pages below their index in the site's menu, as a Sphinx directive."""
    return "\n".join(
        [
            "```{toctree}",
            ":hidden:",
            "",
            *(page_of(name) for name in PAIRS),
            "```",
        ]
    )
