"""Code for all pictures of many runs: the style of each algorithm, and the mean curve of its seeds."""

import textwrap
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from shared.commands import statistics
from shared.commands.reporting.runs import Run

# Each has a contrast of at least 3 with white, and all can be told apart by colour-blind people.
COLOURS = ("#1845fb", "#d55e00", "#117733", "#c849a9", "#000000", "#648fff", "#332288", "#656364")
# Matplotlib's markers, with Bokeh's name for each
MARKERS = {"o": "circle", "s": "square", "^": "triangle", "D": "diamond", "v": "inverted_triangle"}
# Characters in a line
_WIDE = 40


class Look(NamedTuple):
    """The style in which an algorithm is drawn.

    Attributes:
        colour: The colour as `#rrggbb`.
        marker: A key of `MARKERS`.
    """

    colour: str
    marker: str


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Chooses a style for each algorithm by its name, which does not depend on the others unless two names collide.

    No two are the same, as long as there are enough colours and markers.
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
    """Wraps a name into lines that fit on a phone."""
    return "\n".join(textwrap.wrap(name, _WIDE)) or name


def mean_curve(runs: Sequence[Run], most: int | None = None) -> tuple[np.ndarray, statistics.Interval]:
    """The updates (E,) after which all seeds were evaluated, and the mean with its interval, (E,) each.

    Args:
        runs: Runs that only differ in their seeds.
        most: The most points, to which longer curves are thinned evenly; None for all.
    """
    steps = np.array(sorted(set.intersection(*(set(run.evaluated.values) for run in runs))), np.int64)
    if most is not None and len(steps) > most:
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, most).astype(int))]
    values = np.array([[run.evaluated.values[step] for run in runs] for step in steps]).reshape(len(steps), len(runs))
    return steps, statistics.bootstrapped(statistics.mean, values)
