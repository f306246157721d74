"""Every pair climbs every rung, under every variant of its settings, in both precisions, on both datasets."""

import pytest

from parity_tests.ladder import DATASETS, FULL_SIZE, RUNGS, Scene
from parity_tests.pairs import PAIRS

CASES = [
    pytest.param(name, variant, dataset, precision, rung, id=f"{name}-{variant}-{dataset}-{precision}-{rung}")
    for name, pair in PAIRS.items()
    for variant in pair.variants
    for precision in ("float64", "float32")
    for dataset in DATASETS
    for rung in RUNGS
    if getattr(RUNGS[rung], precision) is not None
] + [
    pytest.param(name, FULL_SIZE, "cornered", "float32", rung, id=f"{name}-{FULL_SIZE}-{rung}")
    for name in PAIRS
    for rung in ("gradient", "update")
]


@pytest.mark.parametrize(("name", "variant", "dataset", "precision", "rung"), CASES, indirect=["precision"])
def test_twins_agree(name: str, variant: str, dataset: str, precision: str, rung: str) -> None:
    """The twins are within the rung's tolerance of each other, tensor by tensor."""
    pair = PAIRS[name]
    scene = Scene.create(pair, pair.jax, variant, dataset, RUNGS[rung].warm)
    tolerance = getattr(pair, precision, {}).get(rung, getattr(RUNGS[rung], precision))
    found = RUNGS[rung].climb(scene)
    assert found
    too_far = {what: value for what, value in found.items() if not value <= tolerance}
    worst = dict(sorted(too_far.items(), key=lambda item: -item[1])[:5])
    assert not too_far, f"{rung}, tolerance {tolerance:g}: {len(too_far)} of {len(found)} too far, worst {worst}"
