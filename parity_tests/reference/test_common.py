"""The comparison of logs fails if a name or a value is wrong."""

import pytest
import torch

from parity_tests.reference.common import assert_same_log

RIGHT = {"alpha_loss": torch.tensor(0.0), "alpha": torch.tensor(2.0)}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"alpha": 2.0}, "update 2: .'alpha_loss'."),
        (RIGHT | {"alpha_prime": 1.0}, "update 2: .'alpha_prime'."),
        (RIGHT | {"alpha_loss": 1e-7}, "update 2: alpha_loss"),
        (RIGHT | {"alpha": 2.0000002}, "update 2: alpha"),
        (RIGHT | {"alpha": float("nan")}, "update 2: alpha"),
    ],
)
def test_a_wrong_log_is_told(wrong: dict[str, float], told: str) -> None:
    """The error names the second update, with any tolerance."""
    assert_same_log([RIGHT, RIGHT], [RIGHT, RIGHT])
    for tolerance in (0.0, 1e-8):
        with pytest.raises(AssertionError, match=told):
            assert_same_log([RIGHT, wrong], [RIGHT, RIGHT], tolerance)
