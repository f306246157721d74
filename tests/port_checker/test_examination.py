"""The checker judges ports written by others: it catches wrong ones and points to the mistake, and passes right ones.

The collection (`ports/collection.py`) was written before the diagnosis, by somebody who did not know how it would work.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from parity_tests.engine.caches import forget
from tests.port_checker.conftest import PORTS, check_here, write_port
from tests.port_checker.ports.collection import KNOWN, RIGHT, WRONG, PortCase

# It takes ten minutes.
pytestmark = pytest.mark.examination

# The share of the wrong ports whose mistake the checker must point to
POINTED = 0.8


@pytest.fixture(autouse=True, scope="module")
def freed() -> Iterator[None]:
    """Drops everything that was compiled for the ports at the end."""
    yield
    forget()


def judged(case: PortCase, folder: Path) -> tuple[int, str, str]:
    """The exit status, the failing rung, and the diagnosis: the lines indented below it."""
    path = write_port(folder, PORTS / case.base, case.changes)
    status, told = check_here(path, case.algorithm, case.settings)
    lines = told.splitlines()
    failed = [line.split()[0] for line in lines if " FAILS " in line]
    return status, "".join(failed), "\n".join(line for line in lines if line.startswith("  "))


def points(case: PortCase, diagnosis: str) -> bool:
    """Whether a diagnosis names the operation, or shows its line."""
    return any(what.lower() in diagnosis.lower() for what in (*case.words, *case.lines))


def misleads(case: PortCase, diagnosis: str) -> bool:
    """Whether a diagnosis gives advice that would be wrong to follow."""
    return any(words.lower() in diagnosis.lower() for words in case.wrong_words)


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.name)
def test_a_right_port_is_not_accused(case: PortCase, tmp_path: Path) -> None:
    status, failed, diagnosis = judged(case, tmp_path)
    assert (status, failed) == (0, ""), diagnosis


WRONG_KNOWN = [case for case in KNOWN if case.rung]


@pytest.mark.parametrize("case", WRONG_KNOWN, ids=lambda case: case.name)
def test_what_once_led_astray_is_pointed_to(case: PortCase, tmp_path: Path) -> None:
    """The checker once passed these, or gave a wrong diagnosis."""
    status, failed, diagnosis = judged(case, tmp_path)
    assert (status, failed) == (1, case.rung), diagnosis
    assert points(case, diagnosis), diagnosis
    assert not misleads(case, diagnosis), diagnosis


def test_wrong_ports_are_caught_and_pointed_to(tmp_path: Path) -> None:
    """All are caught, at least four out of five are pointed to, and no diagnosis misleads."""
    passed, missed, misled = [], [], []
    for case in WRONG:
        status, failed, diagnosis = judged(case, tmp_path)
        print(f"\n==== {case.name}: {case.truth}\n{failed}\n{diagnosis}")
        if (status, bool(failed)) != (1, True):
            passed.append(case.name)
        elif misleads(case, diagnosis):
            misled.append(case.name)
        elif not points(case, diagnosis):
            missed.append(case.name)
    print(f"\npassed: {passed}\nmissed: {missed}\nmisled: {misled}")
    assert not passed
    assert not misled
    assert len(WRONG) - len(missed) >= POINTED * len(WRONG), missed
