"""No small change of a JAX twin passes the ladder, but for those that are proven to change nothing.

`python -m parity_tests.mutants` has them all climb, which takes hours, and keeps what became of each. Here the results
are held to the twins as they are, and a sample of each pair climbs again.
"""

from hashlib import sha256

import pytest

from parity_tests.mutants.climbing import noticed
from parity_tests.mutants.results import SURVIVED, equivalents, mutants_of, proof, read
from parity_tests.pairs import PAIRS
from parity_tests.scene import forget_programs

# Mutants of each pair that climb here: some twenty seconds
SAMPLE = 6
CLIMBED = [name for name in PAIRS if read(name)]


def test_thousands_have_climbed() -> None:
    """Of most pairs; a new pair's climb before it is added."""
    assert sum(len(read(name)) for name in CLIMBED) >= 2500


@pytest.mark.parametrize("name", CLIMBED)
def test_every_mutant_of_the_twin_has_climbed(name: str) -> None:
    """The results are of the source as it is; after a change, `python -m parity_tests.mutants --changed` mends them."""
    assert read(name).keys() == {mutant.name for mutant in mutants_of(name)}


@pytest.mark.parametrize("name", CLIMBED)
def test_none_survives_without_a_proof(name: str) -> None:
    """What nothing notices is proven equivalent, and what something notices is not."""
    found = read(name)
    assert not [mutant for mutant, step in found.items() if (step == SURVIVED) != bool(proof(name, "jax", mutant))]


def test_every_proof_is_needed() -> None:
    """Each covers a mutant."""
    names = [(name, mutant) for name in PAIRS for mutant in read(name)]
    for entry in equivalents():
        assert any(entry.covers(name, "jax", mutant) for name, mutant in names), entry.mutants


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAIRS)
def test_a_sample_is_noticed(name: str) -> None:
    """The same mutants each time, from all over the twin."""
    unproven = [mutant for mutant in mutants_of(name) if not proof(name, "jax", mutant.name)]
    sample = sorted(unproven, key=lambda mutant: sha256(mutant.name.encode()).digest())[:SAMPLE]
    assert [mutant.name for mutant in sample if not noticed(name, mutant)] == []
    forget_programs()
