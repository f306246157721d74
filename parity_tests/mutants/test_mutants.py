"""No small change of a twin passes its tests, but for those that are proven to change nothing.

`python -m parity_tests.mutants --side both` tries them all, which takes hours, and keeps what became of each. A mutant
of a JAX twin climbs the ladder, and one of a PyTorch twin meets the derivation of its updates. Here the results are
held to the twins as they are. A sample of each twin's mutants meets again the step that is known to notice them.
"""

from collections.abc import Callable
from hashlib import sha256

import pytest

from parity_tests.engine.caches import forget
from parity_tests.mutants import climbing, deriving
from parity_tests.mutants.operators import Mutant
from parity_tests.mutants.results import SIDES, SURVIVED, equivalents, is_pending, mutants_of, proof, read
from parity_tests.pairs import PAIRS

# Mutants of each twin that are tried here
SAMPLE = 6
CLIMBS: dict[str, Callable] = {"jax": climbing.climb_again, "torch": deriving.climb_again}
each_twin = pytest.mark.parametrize(("name", "side"), [(name, side) for name in PAIRS for side in SIDES])


def test_thousands_have_been_tried() -> None:
    """On each side."""
    for side in SIDES:
        assert sum(len(read(name, side)) for name in PAIRS) >= 3000


@each_twin
def test_every_mutant_of_the_twin_has_been_tried(name: str, side: str) -> None:
    """The results are of the source as it is; after a change, `python -m parity_tests.mutants --changed` mends them.

    Where not all have been tried yet, some are missing, and none is too much.
    """
    tried, every = read(name, side).keys(), {mutant.name for mutant in mutants_of(name, side)}
    assert tried < every if is_pending(name, side) else tried == every


@each_twin
def test_none_survives_without_a_proof(name: str, side: str) -> None:
    """What nothing notices is proven equivalent, and what something notices is not."""
    found = read(name, side)
    assert not [mutant for mutant, step in found.items() if (step == SURVIVED) != bool(proof(name, side, mutant))]


def test_every_proof_is_needed() -> None:
    """Each covers a mutant."""
    names = [(name, side, mutant) for name in PAIRS for side in SIDES for mutant in read(name, side)]
    for entry in equivalents():
        assert any(entry.covers(*mutant) for mutant in names), entry.mutants


@pytest.mark.thorough
@each_twin
def test_a_sample_is_noticed(name: str, side: str) -> None:
    """The same mutants each time, from all over the twin."""
    tried = [mutant for mutant in mutants_of(name, side) if mutant.name in read(name, side)]
    unproven = [mutant for mutant in tried if not proof(name, side, mutant.name)]
    sample = sorted(unproven, key=lambda mutant: sha256(mutant.name.encode()).digest())[:SAMPLE]
    found: dict[str, str] = {}

    def tell(mutant: Mutant, step: str) -> None:
        found[mutant.name] = step

    CLIMBS[side](name, sample, read(name, side), tell)
    assert len(found) == len(sample)
    assert [mutant for mutant, step in found.items() if step == SURVIVED] == []
    forget()
