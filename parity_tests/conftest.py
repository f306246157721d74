"""What tests of the pairs share: a precision, and an end to compiled programs."""

import itertools
from collections.abc import Iterator

import pytest

from parity_tests.compilation import share_programs
from parity_tests.ladder import forget_programs
from parity_tests.precision import both_in

_tests = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """These tests share compiled programs with each other only."""
    share_programs(tmp_path_factory)


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Compiled programs are kept in memory for a while, since tests share them, but not for ever."""
    yield
    if next(_tests) % 50 == 0:
        forget_programs()


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """The precision that a test asks for by indirect parametrisation."""
    with both_in(request.param):
        yield request.param
