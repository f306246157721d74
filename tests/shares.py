"""A share of all tests, for a machine that is too slow for all of them: shares 1/3, 2/3 and 3/3 together are all."""

import re
from zlib import crc32

import pytest


def parsed(share: str) -> tuple[int, int]:
    """Which share of how many `K/N` is.

    Raises:
        pytest.UsageError: It is none.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", share)
    number, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= of:
        raise pytest.UsageError(f"--share {share}: give K/N with K from 1 to N")
    return number, of


def is_in(name: str, number: int, of: int) -> bool:
    """Whether the test of this name belongs to a share, on every machine and in every process alike."""
    return crc32(name.encode()) % of == number - 1
