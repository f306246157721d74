"""Shared by all pictures of many runs: the look of each algorithm, and the mean curve of its seeds."""

import textwrap
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from shared.commands import statistics
from shared.commands.reporting.runs import Run

# Each stands out from white by a contrast of 3 and more, and from every other one also to the colour-blind.
COLOURS = ("#1845fb", "#d55e00", "#117733", "#c849a9", "#000000", "#648fff", "#332288", "#656364")
# Of Matplotlib, and Bokeh's name for each
MARKERS = {"o": "circle", "s": "square", "^": "triangle", "D": "diamond", "v": "inverted_triangle"}
# Characters of a line
_WIDE = 40


class Look(NamedTuple):
    """How an algorithm is drawn.

    Attributes:
        colour: As `#rrggbb`.
        marker: One of `MARKERS`.
    """

    colour: str
    marker: str


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each algorithm, by its name: the same beside whichever others, unless two names want the same.

    No two have the same, up to as many as there are colours and markers.
    """
    found: dict[str, Look] = {}
    for name in sorted(set(names)):
        first = int(sha256(name.encode()).hexdigest(), 16) % len(COLOURS)
        colours = COLOURS[first:] + COLOURS[:first]
        wanted = [Look(colour, marker) for marker in MARKERS for colour in colours]
        taken = set(found.values())
        found[name] = next((look for look in wanted if look not in taken), wanted[0])
    return found


def wrapped(name: str) -> str:
    """A name in lines that the page of a phone has room for."""
    return "\n".join(textwrap.wrap(name, _WIDE)) or name


def mean_curve(runs: Sequence[Run], most: int | None = None) -> tuple[np.ndarray, statistics.Interval]:
    """The updates (E,) after which all seeds were evaluated, and the mean with its interval, (E,) each.

    Args:
        runs: That differ in their seeds alone.
        most: Points of a longer curve, which is thinned evenly; None for all.
    """
    steps = np.array(sorted(set.intersection(*(set(run.evaluated.values) for run in runs))), np.int64)
    if most is not None and len(steps) > most:
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, most).astype(int))]
    values = np.array([[run.evaluated.values[step] for run in runs] for step in steps]).reshape(len(steps), len(runs))
    return steps, statistics.bootstrapped(statistics.mean, values)
