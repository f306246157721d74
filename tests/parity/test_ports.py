"""The examination's ports can be asked: what they are told of sizes is what the check's settings say."""

import pytest

from parity_tests.checker.answers import answer
from parity_tests.checker.loading import load_module
from parity_tests.checker.port import Port
from parity_tests.checker.questions import questions
from parity_tests.pairs import PAIRS
from parity_tests.precision import both_in
from tests.parity.conftest import PORTS
from tests.parity.ports.collection import RIGHT


@pytest.mark.thorough
@pytest.mark.parametrize(("base", "algorithm"), sorted({(case.base, case.algorithm) for case in RIGHT}))
def test_a_port_answers_the_first_rung(base: str, algorithm: str) -> None:
    """The examination takes ten minutes and is asked for by name; a port that no longer fits shows here."""
    port = Port(base, load_module(PORTS / base), PAIRS[algorithm])
    with both_in("float64"):
        for question in questions(algorithm, "forward", ("default",)):
            answer(port, question)
