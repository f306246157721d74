"""The error between two sides: anything that only one of them has never counts as equal."""

import numpy as np

from parity_tests.errors import error, errors


def test_a_name_that_one_side_lacks_is_an_infinite_error() -> None:
    one, two = {"a": np.ones(2)}, {"a": np.ones(2), "b": np.ones(2)}
    assert errors(one, two) == errors(two, one) == {"a": 0.0, "b": np.inf}


def test_an_error_is_relative_to_the_references_largest_entry() -> None:
    """Or to the largest of all; another shape or NaN is not a small error."""
    ours, reference = {"a": [1.0, 4.5], "b": [8.0]}, {"a": [1.0, 4.0], "b": [10.0]}
    assert errors(ours, reference) == {"a": 0.125, "b": 0.2}
    assert errors(ours, reference, together=True) == {"a": 0.05, "b": 0.2}
    assert error([1.0, np.nan], [1.0, 2.0]) == error([1.0], [1.0, 1.0]) == np.inf
