"""`pytest --until`, by which CI ends in time on a slow machine."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.thorough
@pytest.mark.parametrize(("seconds", "word"), [(-1, "skipped"), (3600, "passed")])
def test_only_what_is_too_late_is_skipped(seconds: int, word: str) -> None:
    until = str(int(time.time()) + seconds)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--until", until, "tests/test_heap.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    words = found.stdout.splitlines()[-1].split()
    assert words[1] == word
