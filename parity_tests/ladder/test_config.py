"""Both twins have the same settings, types and defaults, and each dataset's row has the same effect on both."""

from pathlib import Path

import pytest
import yaml

from parity_tests.ladder.settings import unequal_settings
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.runs.configs import dump, parse

ROWS = [
    pytest.param(name, dataset, id=f"{name}-{dataset}")
    for name in PAIRS
    for dataset in yaml.safe_load((Path(__file__).parents[2] / "configs" / f"{name}.yaml").read_text())
]


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_fields_are_equal(pair: Pair) -> None:
    """Names, order, types, defaults and bounds are equal."""
    assert not unequal_settings(pair)


@pytest.mark.parametrize(("name", "dataset"), ROWS)
def test_rows_have_the_same_effect(name: str, dataset: str) -> None:
    """Naming a dataset gives both twins the same settings."""
    pair = PAIRS[name]
    ours, reference = (dump(parse(twin.TrainConfig, name, ["--env", dataset])) for twin in (pair.jax, pair.torch))
    assert ours == reference
    assert f"env: {dataset}" in ours
