"""The collection of ports written by others: each matches its description, before the checker is tested with it."""

from pathlib import Path

import pytest

from parity_tests.pairs import PAIRS
from port_checker.finding.figures import TOLERANCES
from tests.port_checker.conftest import PORTS, write_port
from tests.port_checker.ports.collection import BASES, KNOWN, RIGHT, WRONG, PortCase

CASES = (*WRONG, *RIGHT, *KNOWN)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_port_is_as_it_is_described(case: PortCase, tmp_path: Path) -> None:
    """It is valid Python, and its changes apply to the current base; the twin contains the lines of a wrong one."""
    path = write_port(tmp_path, PORTS / case.base, case.changes)
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
    assert case.settings in PAIRS[case.algorithm].variants
    if case in RIGHT:
        assert (case.rung, case.words, case.lines, case.wrong_words) == ("", (), (), ())
        return
    source = Path(str(PAIRS[case.algorithm].jax.__file__)).read_text(encoding="utf-8")
    assert case.changes
    assert case.rung in TOLERANCES
    assert case.words
    assert [line for line in case.lines if line not in source] == []
    assert not any(wrong in word or word in wrong for word in case.words for wrong in case.wrong_words)


def test_each_port_is_there_once() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert len({case.base for case in BASES}) == len(BASES)
