"""Files made from code, results and other pages are up to date."""

import pytest

import derived


# Notebooks are executed, and tables read all results, which takes minutes.
# `tests/lessons/test_measured.py` looks at the lessons, where they are measured for other tests too.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", [kind for kind in derived.KINDS if kind is not derived.lessons], ids=lambda kind: kind.__name__
)
def test_nothing_is_stale(kind: derived.Kind) -> None:
    """Neither changed by hand, nor made from something that has changed since."""
    assert derived.named(kind) == "", "run `make derived`, and commit what it writes"
