"""Figures: what a rung yields, and when two of them are the same."""

from collections.abc import Mapping

from parity_tests.errors import errors
from shared.frameworks.exchange import Named

# What a rung yields: numbers by name, in groups that are right or wrong together
Expected = Mapping[str, Named]
# What a port answers; None: not written yet
Figures = Mapping[str, Named | None]

# The tolerances of the ladder's own rungs are for twins written line by line alike. A right port may write the same
# number another way (log(1 - tanh^2) for a stable form, a mean of means), which costs digits. Every planted mistake is
# off by a hundred times as much: tests/port_checker/test_naming.py holds them to that.
TOLERANCES = {
    "weights": 0.0,
    "forward": 1e-10,
    "loss": 1e-9,
    "gradient": 1e-8,
    # Faults, 0 or 1 at least (parity_tests/ladder/draws.py); by how much samples are off is known to some hundredths.
    "draws": 0.05,
    "update": 1e-8,
    "log": 1e-8,
    "trajectory": 1e-7,
}


def compare(rung: str, ours: Figures, theirs: Expected) -> dict[str, dict[str, float]]:
    """The error of each number of each group that is written, relative to its tensor, or a gradient's network."""
    found = {}
    for group, reference in theirs.items():
        values = ours.get(group, {})
        if values is None:
            continue
        if rung == "log":
            reference = {name: value for name, value in reference.items() if name in values}
        found[group] = errors(values, reference, together=rung == "gradient")
    return found


def wrong_in(rung: str, ours: Figures, theirs: Expected) -> list[str]:
    """The groups whose figures are not the same within the rung's tolerance."""
    compared = compare(rung, ours, theirs).items()
    return [group for group, values in compared if not all(value <= TOLERANCES[rung] for value in values.values())]
