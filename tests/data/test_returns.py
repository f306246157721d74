"""What transitions earned from there on, and what stands for it where only the future could tell."""

import numpy as np
import pytest

from shared.data.returns import extract_returns, online_rows
from shared.data.transitions import Batch, extract_sarsa


def rows(terminals: list[int], timeouts: list[int], size: int = 7) -> dict[str, np.ndarray]:
    """Rows whose rewards are 1, 2, 3, ..."""
    return {
        "observations": np.arange(size, dtype=np.float32)[:, None],
        "actions": np.arange(size, dtype=np.float32)[:, None],
        "rewards": 1.0 + np.arange(size, dtype=np.float32),
        "terminals": np.isin(np.arange(size), terminals),
        "timeouts": np.isin(np.arange(size), timeouts),
    }


def test_a_return_ends_with_a_terminal_a_time_limit_or_the_file() -> None:
    """Rows 0 and 1 end in a terminal, 2 and 3 at the limit of row 4, which is dropped, and 5 with the file."""
    found = extract_returns(rows([1], [4]), discount=0.5)
    np.testing.assert_array_equal(found.returns, np.float32([1 + 0.5 * 2, 2, 3 + 0.5 * 4, 4, 6]))
    for mine, other in zip(found, extract_sarsa(rows([1], [4])), strict=False):
        np.testing.assert_array_equal(mine, other)


def test_a_limit_alone_counts_where_there_are_no_marks() -> None:
    raw = rows([], [])
    del raw["timeouts"]
    np.testing.assert_array_equal(extract_returns(raw, 3, 1.0).returns, [3, 2, 9, 5])


def test_returns_are_added_up_in_double_precision() -> None:
    raw = rows([], [], size=3002)
    raw["rewards"][:] = 0.1
    exact = float(np.float32(0.1)) * (1 - 0.999**3001) / (1 - 0.999)
    assert extract_returns(raw, discount=0.999).returns[0] == pytest.approx(exact, rel=1e-7)


def test_of_a_step_in_the_environment_the_future_is_0() -> None:
    steps = Batch(*(np.ones((4, *shape), np.float32) for shape in ((3,), (2,), (), (3,), ())))
    found = online_rows(steps)
    for mine, given in zip(found, steps, strict=False):
        np.testing.assert_array_equal(mine, given)
    np.testing.assert_array_equal(found.next_actions, np.zeros((4, 2)))
    np.testing.assert_array_equal(found.returns, np.zeros(4))
