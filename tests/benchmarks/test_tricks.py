"""Every measured trick makes the same updates as the code that ships, in double precision."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from benchmarks import jax_rungs
from benchmarks.changes import TRICKS, Tried, edited
from parity_tests.engine.precision import both_in
from parity_tests.pairs import PAIRS
from tests.benchmarks.test_rungs import check, jax_parts, small
from tests.benchmarks.uncompiled import compile_nothing

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """JAX in double precision, without a compiler, since only the updates matter."""
    compile_nothing(monkeypatch)
    with both_in("float64"):
        yield


def networks(state: Any) -> dict[str, Any]:
    """A state's numbers; Adam's moments may have another layout."""
    return {name: value for name, value in jax_parts(state).items() if "optimizer" not in name}


@cache
def shipped(algorithm: str) -> dict[str, Any]:
    """The networks after the updates of the code that ships."""
    return networks(jax_rungs.scan(small(algorithm))())


# Another library for products changes nothing that NumPy computes here, so one of these tricks is enough.
SAME = ("CQL's products by YNNPACK", "EDAC's products by YNNPACK", "SAC-N's products by YNNPACK")
SAME += ("a dynamics ensemble's products by YNNPACK",)


@pytest.mark.parametrize("name", [name for name, trick in TRICKS.items() if trick.changes and name not in SAME])
def test_a_trick_makes_the_same_updates(name: str) -> None:
    trick = TRICKS[name]
    same = small(trick.of)
    tried = Tried(same.name, same.updates, same.settings, same.rows, changes=trick.changes)
    check(networks(jax_rungs.scan(tried)()), shipped(trick.of))


@pytest.mark.parametrize("name", SAME)
def test_a_trick_with_products_fits_its_twin(name: str) -> None:
    assert edited(PAIRS[TRICKS[name].of], TRICKS[name].changes)
