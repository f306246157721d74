"""Shares of all tests."""

from itertools import chain

import pytest

from tests.shares import is_in, parsed

NAMES = [f"tests/test_{name}.py::test[{case}]" for name in "abcdef" for case in range(50)]


def test_every_test_is_in_one_share() -> None:
    """None is in two, and shares are of like size."""
    taken = [[name for name in NAMES if is_in(name, *parsed(f"{number}/3"))] for number in (1, 2, 3)]
    assert sorted(chain(*taken)) == sorted(NAMES)
    assert all(70 < len(share) < 130 for share in taken)
    assert [name for name in NAMES if is_in(name, *parsed("1/1"))] == NAMES


@pytest.mark.parametrize("share", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3"])
def test_what_is_no_share_is_refused(share: str) -> None:
    with pytest.raises(pytest.UsageError, match="from 1 to N"):
        parsed(share)
