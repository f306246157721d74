"""The returns of transitions, and estimates where only the future could tell."""

from typing import Any

import numpy as np
import pytest

from shared.data.returns import (
    extract_ended,
    extract_episodes,
    extract_returns,
    online_rows,
    unknown_returns,
    with_returns,
)
from shared.data.transitions import Batch, extract_sarsa, extract_transitions
from shared.errors import InputError
from shared.frameworks.twins import load_twin


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


# ---- AWR's ---------------------------------------------------------------------------------------------------------


def test_an_episode_ends_where_the_file_says_so() -> None:
    """With a terminal, before a row that a time limit ended, and with the file, whatever the states are."""
    raw = rows([1], [4, 5], size=9)
    raw["observations"][:] = 0.0
    found = extract_episodes(raw)
    np.testing.assert_array_equal(found.rewards, [1, 2, 3, 4, 7, 8])
    np.testing.assert_array_equal(found.last, [False, True, False, True, False, True])
    for mine, other in zip(found, extract_transitions(raw), strict=False):
        np.testing.assert_array_equal(mine, other)


def test_a_limit_alone_ends_episodes_where_there_are_no_marks() -> None:
    raw = rows([], [])
    del raw["timeouts"]
    found = extract_episodes(raw, 3)
    np.testing.assert_array_equal(found.rewards, [1, 2, 4, 5])
    np.testing.assert_array_equal(found.last, [False, True, False, True])


def test_where_every_next_state_is_known_a_row_at_its_limit_is_the_last() -> None:
    """No row of Minari's datasets is dropped."""
    raw = rows([1], [4], size=6)
    found = extract_episodes(raw | {"next_observations": raw["observations"] + 1.0})
    np.testing.assert_array_equal(found.rewards, [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(found.last, [False, True, False, False, True, True])


@pytest.mark.parametrize("side", ["torch", "jax"])
@pytest.mark.parametrize("few", [{"minibatch_size": 65}, {"value_updates": 3}, {"actor_updates": 3}])
def test_an_update_without_a_gradient_step_is_refused(side: str, few: dict[str, int]) -> None:
    """Four slices take four steps of each network."""
    twin = load_twin(side, "awr")
    enough = {"batch_size": 64, "minibatch_size": 16, "value_updates": 4, "actor_updates": 4}
    with pytest.raises(InputError, match="set minibatch_size to at most batch_size, value_updates"):
        twin.train(twin.TrainConfig(**enough | few))
    with pytest.raises(InputError, match="nowhere"):
        twin.train(twin.TrainConfig(**enough, env="nowhere"))


# ---- Cal-QL's ------------------------------------------------------------------------------------------------------


def test_a_trajectory_ends_where_the_next_begins_elsewhere() -> None:
    """With a terminal, before a row ended by a time limit, after the limit's number of steps, and with the file."""
    found = extract_ended(rows([1], [4], size=9), max_episode_steps=2)
    np.testing.assert_array_equal(found.observations[:, 0], [0, 1, 2, 3, 5, 6, 7])
    np.testing.assert_array_equal(found.last, [False, True, False, True, False, True, True])
    for mine, other in zip(found, extract_transitions(rows([1], [4], size=9)), strict=False):
        np.testing.assert_array_equal(mine, other)


def test_a_return_ends_with_its_trajectory() -> None:
    ended = extract_ended(rows([1], [4]))
    np.testing.assert_array_equal(with_returns(ended, 0.5).returns, np.float32([1 + 0.5 * 2, 2, 3 + 0.5 * 4, 4, 6]))


def test_who_fails_fails_for_ever() -> None:
    """The last reward determines the returns of the whole trajectory."""
    ended = extract_ended(rows([1], [4]))
    np.testing.assert_array_equal(with_returns(ended, 0.5, failure=4.0).returns, np.float32([2, 2, 8, 8, 6]))
    with pytest.raises(InputError, match="set discount below 1"):
        with_returns(ended, 1.0, failure=4.0)


def test_what_a_step_will_earn_is_unknown() -> None:
    steps = Batch(*(np.ones((4, *shape), np.float32) for shape in ((3,), (2,), (), (3,), ())))
    *columns, returns = unknown_returns(steps)
    for mine, given in zip(columns, steps, strict=True):
        np.testing.assert_array_equal(mine, given)
    np.testing.assert_array_equal(returns, np.zeros(4))


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_both_twins_prepare_alike(side: str) -> None:
    """Rewards come first, then returns; D4RL's lowest score of a maze is 0."""
    twin, ended = load_twin(side, "finetune/cal_ql"), extract_ended(rows([1], [4]))
    ended.rewards[:] = [0, 1, 0, 0, 1]
    rule = {"reward_scale": 10.0, "reward_bias": -5.0, "discount": 0.5, "is_sparse_reward": True}

    def prepared(env: str, **more: Any) -> Any:
        return twin.CalibratedRewards(twin.TrainConfig(**rule, **more)).modified(ended, env)

    found = prepared("antmaze-umaze-v2", normalize_reward=True)
    np.testing.assert_array_equal(found.rewards, [-5, 5, -5, -5, 5])
    np.testing.assert_array_equal(found.returns, [-2.5, 5, -10, -10, 5])
    with pytest.raises(InputError, match="unknown D4RL dataset"):
        prepared("mini/hopper-medium-replay")
    with pytest.raises(InputError, match="set reward_scaler to none on sparse tasks"):
        prepared("antmaze-umaze-v2", reward_scaler="multiply")
