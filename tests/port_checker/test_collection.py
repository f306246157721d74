"""The collection of ports written by others: each matches its description, before the checker is tested with it."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from parity_tests.pairs import PAIRS
from port_checker.finding.figures import TOLERANCES
from tests.port_checker.conftest import PORTS, write_port
from tests.port_checker.ports.collection import BASES, KNOWN, RIGHT, WRONG, PortCase

CASES = {case.name: case for case in (*WRONG, *RIGHT, *KNOWN)}


@pytest.mark.parametrize("name", CASES)
def test_a_port_can_be_made(name: str, tmp_path: Path) -> None:
    """It is valid Python, and its changes apply to the current base."""
    case = CASES[name]
    path = write_port(tmp_path, PORTS / case.base, case.changes)
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
    assert case.settings in PAIRS[case.algorithm].variants


@pytest.mark.parametrize("case", [*WRONG, *(case for case in KNOWN if case.rung)], ids=lambda case: case.name)
def test_a_wrong_port_says_what_would_point_at_it(case: PortCase) -> None:
    """The twin contains its lines; right words are not among the wrong ones."""
    source = Path(str(PAIRS[case.algorithm].jax.__file__)).read_text(encoding="utf-8")
    assert case.changes
    assert case.rung in TOLERANCES
    assert case.words
    assert [line for line in case.lines if line not in source] == []
    assert not any(wrong in word or word in wrong for word in case.words for wrong in case.wrong_words)


def test_right_ports_ask_for_nothing() -> None:
    assert not any((case.rung, case.words, case.lines, case.wrong_words) != ("", (), (), ()) for case in RIGHT)
    assert not any(case.changes for case in BASES)


def test_numbers() -> None:
    rungs = Counter(case.rung for case in WRONG)
    assert (len(WRONG), len(RIGHT)) == (40, 15)
    assert (rungs["forward"], rungs["loss"], rungs["log"], rungs["draws"]) == (6, 16, 1, 3)
    assert (len({case.base for case in BASES}), len({case.algorithm for case in BASES})) == (7, 7)
    for cases in ((*WRONG, *RIGHT), KNOWN, {*WRONG, *RIGHT, *KNOWN}):
        assert len(_names(cases)) == len(cases)


def _names(cases: Sequence[PortCase] | set[PortCase]) -> set[str]:
    return {case.name for case in cases}
