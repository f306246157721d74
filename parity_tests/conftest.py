"""What tests of the pairs share: a precision."""

from collections.abc import Iterator

import pytest

from parity_tests.engine.precision import both_in


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """The precision that a test asks for by indirect parametrisation."""
    with both_in(request.param):
        yield request.param
