"""The README's picture of two twins: one loss in both files, side by side, with its equal lines dimmed."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shared.frameworks.twins import FRAMEWORKS
from shared.runs.curves import svg
from side_by_side.align import Kind, Row
from side_by_side.notes import SIDES
from side_by_side.pairs import Checkout

ROOT = Path(__file__).resolve().parents[2]
PAIR, PIECE = "td3_bc", "actor_loss"
# The number of letters in a line, and their size in points; a letter's width and a line's height in inches
WIDE, SIZE, LETTER, LINE = 72, 9, 0.0753, 0.2
# Colours for a side's name, for a line that differs, and for the parts that differ
COLOURS = {"torch": ("#c2410c", "#fdf0e8", "#f3c9b3"), "jax": ("#1d4ed8", "#eaf0fd", "#bccdf6")}
INK, DIMMED = "#1f2328", "#767b81"

# Letters, each with whether it belongs to a difference
Letters = list[tuple[str, bool]]


def drawn() -> str:
    """Draws an SVG, with the same text each time."""
    sections = Checkout(ROOT, ROOT / "docs").pair(PAIR).sections
    (piece,) = (piece for section in sections for piece in section.pieces if piece.name == PIECE)
    rows = [[list(_pieces(_letters(row, side))) for side in SIDES] for row in piece.rows]
    heights = [max(map(len, row)) for row in rows]
    size = (2 * (WIDE + 2) * LETTER, (sum(heights) + 2) * LINE)
    figure = Figure(figsize=size)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0))
    axes.set_axis_off()
    _ground(axes, (0, 0), size, "white")
    for side, left in zip(SIDES, (LETTER, size[0] / 2 + LETTER), strict=True):
        name = f"{FRAMEWORKS[side]}: corl_{side}/{PAIR}.py"
        axes.text(left, 0.75 * LINE, name, color=COLOURS[side][0], size=SIZE, weight="bold", va="center")
    top = 1.5 * LINE
    for row, texts, height in zip(piece.rows, rows, heights, strict=True):
        for side, left, lines in zip(SIDES, (LETTER, size[0] / 2 + LETTER), texts, strict=True):
            different = row.kind is Kind.DIFFERENT and bool(lines)
            if different:
                _ground(axes, (left - LETTER, top), (size[0] / 2, height * LINE), COLOURS[side][1])
            for number, line in enumerate(lines):
                _write(axes, (left, top + number * LINE), line, COLOURS[side][2] if different else "")
        top += height * LINE
    return svg(figure, PIECE)


def _letters(row: Row, side: str) -> Letters:
    """One side's line of a row."""
    changed = row.changed[SIDES.index(side)] if row.changed else ()
    tokens = getattr(row, side).tokens if getattr(row, side) else ()
    return [(letter, i in changed) for i, (_, text) in enumerate(tokens) for letter in text]


def _pieces(letters: Letters) -> Iterator[Letters]:
    """Splits a line into pieces that are short enough; all pieces except the first are indented more."""
    text = "".join(letter for letter, _ in letters)
    margin = [(" ", False)] * (len(text) - len(text.lstrip()) + 8)
    while len(letters) > WIDE:
        end = "".join(letter for letter, _ in letters).rindex(" ", 0, WIDE) + 1
        yield letters[:end]
        letters = margin + letters[end:]
    if letters:
        yield letters


def _write(axes: Axes, place: tuple[float, float], letters: Letters, mark: str) -> None:
    """Writes a line with this upper left corner; differences get the colour `mark` as a background, if there is one."""
    left, top = place
    for changed, run in groupby(enumerate(letters), key=lambda numbered: numbered[1][1]):
        places = [number for number, _ in run]
        if changed and mark:
            corner = (left + places[0] * LETTER, top + 0.1 * LINE)
            _ground(axes, corner, (len(places) * LETTER, 0.8 * LINE), mark)
    # An SVG viewer would draw several blanks as one.
    text = "".join(letter for letter, _ in letters).replace(" ", "\N{NO-BREAK SPACE}")
    colour = INK if mark else DIMMED
    axes.text(left, top + LINE / 2, text, color=colour, size=SIZE, family="monospace", va="center")


def _ground(axes: Axes, corner: tuple[float, float], size: tuple[float, float], colour: str) -> None:
    """Fills a rectangle without a border."""
    (left, top), (width, height) = corner, size
    axes.fill_between((left, left + width), top, top + height, color=colour, linewidth=0)
