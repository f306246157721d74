"""The pairs as the site lists them; `make derived` enters them there."""

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.frameworks.twins import page_of


def of_family(family: Family) -> list[Pair]:
    """The pairs of a family, by their titles."""
    return sorted((pair for pair in PAIRS.values() if pair.family is family), key=lambda pair: pair.title.lower())


def table() -> str:
    """A row for each family, with links to its algorithms' pages, as Markdown for the front page of the site."""
    lines = ["| family | the case for it | algorithms |", "|---|---|---|"]
    for family in Family:
        links = ", ".join(f"[{short(pair)}](algorithms/{page_of(pair.name)}.md)" for pair in of_family(family))
        lines.append(f"| {family.title} | {family.case} | {links} |")
    return "\n".join(lines)


def short(pair: Pair) -> str:
    """A pair's title within its family, which need not say the family's name again."""
    return pair.title.removesuffix(f", {pair.family.title.lower()}")


def toctree() -> str:
    """The algorithms' pages below their index in the site's menu, as a directive of Sphinx's."""
    return "\n".join(
        [
            "```{toctree}",
            ":hidden:",
            "",
            *(page_of(name) for name in PAIRS),
            "```",
        ]
    )
