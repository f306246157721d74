"""Figures: the results of a rung, and the test for whether two of them are equal."""

from collections.abc import Mapping

from parity_tests.errors import errors
from shared.frameworks.exchange import Named

# The reference's results: numbers by name, in groups that are right or wrong together
Expected = Mapping[str, Named]
# A port's results; None if not written yet
Figures = Mapping[str, Named | None]

# The ladder's own tolerances are for twins with the same operations, line by line. A correct port may write the same
# number another way (log(1 - tanh^2) for a stable form, a mean of means), which costs digits. Every planted mistake
# exceeds its tolerance a hundredfold, as tests/port_checker/test_naming.py checks.
TOLERANCES = {
    "weights": 0.0,
    "forward": 1e-10,
    "loss": 1e-9,
    "gradient": 1e-8,
    # Faults are 0, or at least 1 (parity_tests/ladder/draws.py); deviations of samples are known to a few hundredths.
    "draws": 0.05,
    "update": 1e-8,
    "log": 1e-8,
    "trajectory": 1e-7,
}


def compare(rung: str, ours: Figures, theirs: Expected) -> dict[str, dict[str, float]]:
    """The error of each number that is written, by group, relative to its tensor or, for gradients, to its network."""
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
    """The groups whose figures differ by more than the rung's tolerance."""
    compared = compare(rung, ours, theirs).items()
    return [group for group, values in compared if not all(value <= TOLERANCES[rung] for value in values.values())]
