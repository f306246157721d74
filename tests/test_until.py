"""`pytest --until`, with which CI ends in time on a slow machine."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scheduling import ByFile

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.thorough
@pytest.mark.parametrize(("seconds", "word"), [(-1, "skipped"), (3600, "passed")])
def test_only_what_is_too_late_is_skipped(seconds: int, word: str) -> None:
    until = str(int(time.time()) + seconds)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--until", until, "tests/test_seals.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    words = found.stdout.splitlines()[-1].split()
    assert words[1] == word


def test_each_pair_of_the_ladder_has_a_scope_of_its_own() -> None:
    ladder = "parity_tests/ladder/test_ladder.py"
    scope = ByFile._split_scope
    assert scope(None, f"{ladder}::test_twins_agree[iql-a-b]") == scope(None, f"{ladder}::test_full[iql]")
    assert scope(None, f"{ladder}::test_twins_agree[iql-a-b]") != scope(None, f"{ladder}::test_twins_agree[cql-a-b]")
    assert scope(None, "tests/test_a.py::test_b[iql-a]") == scope(None, "tests/test_a.py::test_c")
