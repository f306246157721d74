"""The examination's ports can be questioned: the sizes that they receive match the check's settings."""

import pytest

from parity_tests.engine.precision import both_in
from parity_tests.pairs import PAIRS
from port_checker.finding.answers import answer
from port_checker.finding.loading import load_module
from port_checker.finding.port import Port
from port_checker.finding.questions import questions
from tests.port_checker.conftest import PORTS
from tests.port_checker.ports.collection import RIGHT


@pytest.mark.thorough
@pytest.mark.parametrize(("base", "algorithm"), sorted({(case.base, case.algorithm) for case in RIGHT}))
def test_a_port_answers_the_first_rung(base: str, algorithm: str) -> None:
    """The examination takes ten minutes and runs only on request, so a port that no longer fits shows here."""
    port = Port(base, load_module(PORTS / base), PAIRS[algorithm])
    with both_in("float64"):
        for question in questions(algorithm, "forward", ("default",)):
            answer(port, question)
