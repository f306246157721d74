"""Fixtures shared by the tests of the pairs."""

from collections.abc import Iterator

import pytest

from parity_tests.engine.precision import both_in


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """Sets the precision that a test requests by indirect parametrisation."""
    with both_in(request.param):
        yield request.param
