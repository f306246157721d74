"""What is measured for a page: how far something is off, or a figure with and without a mistake."""

from typing import NamedTuple


class Error(NamedTuple):
    """How far two ways of writing something are from the reference.

    Attributes:
        what: What was compared.
        wrong: The wrong way's distance.
        right: The right way's.
        bound: What the right way's distance may not exceed, rounding included; the wrong way's must.
    """

    what: str
    wrong: float
    right: float
    bound: float


class Figure(NamedTuple):
    """A number with and without the mistake.

    Attributes:
        what: What the number is.
        wrong: With the mistake.
        right: Without it.
    """

    what: str
    wrong: float
    right: float


def in_words(row: Error | Figure) -> tuple[str, str]:
    """Both numbers as pages print them: two digits of an error and the bound of what is rounding, three of a figure."""
    if isinstance(row, Error):
        return f"{row.wrong:.2g}", "0" if row.bound == 0.0 else f"below {row.bound:.0e}"
    return _figure(row.wrong), _figure(row.right)


def _figure(value: float) -> str:
    if abs(value) < 1e-12:
        return "0"
    return f"{value:.0f}" if abs(value) >= 100.0 else f"{value:.3g}"


def table(rows: list[Error | Figure]) -> str:
    """Rows as a Markdown table."""
    lines = ["| measured | wrong | right |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.what} | {' | '.join(in_words(row))} |" for row in rows)])
