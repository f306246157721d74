"""The examination's ports can be asked: what they are told of sizes is what the check's settings say."""

from pathlib import Path

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
@pytest.mark.parametrize("base", sorted({(case.base, case.algorithm) for case in RIGHT}))
def test_a_port_holds_its_first_rung(base: tuple[str, str]) -> None:
    """The examination takes ten minutes and is asked for by name; a port that no longer fits shows here."""
    file, algorithm = base
    port = Port(file, load_module(Path(PORTS / file)), PAIRS[algorithm])
    with both_in("float64"):
        for question in questions(algorithm, "forward", ("default",)):
            answer(port, question)
