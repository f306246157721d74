"""Both twins have the same settings, types and defaults, and each dataset's row has the same effect on both."""

from pathlib import Path

import pytest
import yaml

from parity_tests.ladder.settings import unequal_settings
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.runs.configs import from_settings

TABLES = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_fields_are_equal(pair: Pair) -> None:
    """Names, order, types, defaults and bounds are equal."""
    assert not unequal_settings(pair)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_rows_are_settings(pair: Pair) -> None:
    """Each dataset's row names settings of the algorithm, and its values are within their bounds."""
    for dataset, row in yaml.safe_load((TABLES / f"{pair.name}.yaml").read_text()).items():
        from_settings(pair.torch.TrainConfig, pair.name, row or {}, f"{dataset}: ")
