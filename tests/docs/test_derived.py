"""What is made from code, results and other pages is as it would be made today."""

import pytest

import derived


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.thorough if kind is derived.lessons else ()) for kind in derived.KINDS],
    ids=lambda kind: kind.__name__,
)
def test_nothing_is_stale(kind: derived.Kind) -> None:
    """What was changed by hand, or made from what has changed since."""
    stale = [path.relative_to(derived.ROOT).as_posix() for path, _ in derived.stale(kind)]
    assert not stale, f"run `make derived`, and commit what it writes: {', '.join(stale)}"
