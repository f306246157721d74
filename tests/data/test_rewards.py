"""Scaled rewards and kept trajectories, against CORL's rules computed by hand."""

import numpy as np
import pytest

from shared.data.rewards import (
    BestEpisodes,
    CorlRewards,
    HundredfoldRewards,
    ScaledRewards,
    ShiftedRewards,
    SparseRewards,
    StandardRewards,
    TrueEpisodeRewards,
    return_range,
)
from shared.data.transitions import Batch
from shared.errors import InputError
from shared.names import OGBENCH


def transitions(rewards: list[float], terminals: list[int]) -> Batch:
    """A dataset in which only rewards and terminals matter."""
    states = np.zeros((len(rewards), 1), np.float32)
    return Batch(states, states, np.array(rewards, np.float32), states, np.array(terminals, np.float32))


@pytest.mark.parametrize(
    ("rewards", "terminals", "expected"),
    [
        ([1, 2, 3, 4], [0, 1, 0, 1], (3, 7)),
        ([1, 2, 3, 4, 100], [0, 1, 0, 1, 0], (3, 7)),  # an open last piece does not count
        ([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 1, 0], (6, 9)),  # pieces of three, regardless of episodes
        ([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 0, 0], (6, 15)),  # a terminal on the last row of a piece ends one piece
    ],
)
def test_return_range_of_pieces(rewards: list[float], terminals: list[int], expected: tuple[float, float]) -> None:
    dataset = transitions(rewards, terminals)
    assert return_range(dataset.rewards, dataset.terminals, max_length=3) == expected


def test_return_range_cuts_after_a_thousand() -> None:
    assert return_range(np.ones(2999), np.eye(1, 2999, 1500)[0]) == (501, 1000)


def test_returns_are_summed_in_float64() -> None:
    rewards = np.array([1e8, 1, 1, 1], np.float32)
    low, high = return_range(rewards, np.array([0, 0, 0, 1]))
    assert float(low) == float(high) == 1e8 + 3


@pytest.mark.parametrize(
    ("frac", "discount", "kept"),
    [
        (1.0, 1.0, [3, 4, 0, 1, 5, 6, 2]),  # returns 3, 1, 7 and 2; the open tail (7, 8) is lost
        (0.5, 1.0, [3, 4, 0, 1]),
        (0.74, 1.0, [3, 4, 0, 1]),  # rounded down
        (0.1, 1.0, [3, 4]),  # but at least one
        (0.0, 1.0, [3, 4]),
        (0.5, 0.0, [5, 6, 0, 1]),  # the first reward alone: 1.5, 1, 1, 2
        (0.25, 0.5, [3, 4]),  # 2.5, 1, 4, 2
    ],
)
def test_the_best_pieces_are_kept_in_order(frac: float, discount: float, kept: list[int]) -> None:
    rewards, terminals = [1.5, 1.5, 1, 1, 6, 2, 0, 50, 50], [0, 1, 1, 0, 1, 0, 1, 0, 0]
    dataset = transitions(rewards, terminals)._replace(actions=np.arange(9.0)[:, None])
    best = BestEpisodes(frac, discount).modified(dataset, "")
    assert best.actions[:, 0].tolist() == kept
    assert best.rewards.tolist() == [rewards[row] for row in kept]
    assert all(len(column) == len(kept) for column in best)


def test_pieces_are_cut_after_a_thousand() -> None:
    dataset = transitions([1.0] * 1000 + [3.0] * 1000 + [9.0] * 999, [0] * 2999)
    assert BestEpisodes(0.5, 1.0).modified(dataset, "").rewards.tolist() == [3.0] * 1000
    assert BestEpisodes(1.0, 1.0).modified(dataset, "").rewards.tolist() == [3.0] * 1000 + [1.0] * 1000


def test_without_a_complete_piece_there_is_no_best() -> None:
    with pytest.raises(InputError, match="has no complete episode"):
        BestEpisodes(0.1, 1.0).modified(transitions([1.0, 2.0], [0, 0]), "")


@pytest.mark.parametrize("env", ["d4rl/halfcheetah-v2", "Walker2d-v5"])
def test_locomotion_rewards_are_scaled_in_two_float32_steps(env: str) -> None:
    dataset = transitions([0.1, 0.2, 0.7, 3.3, 0.3], [0, 1, 0, 1, 0])
    low, high = return_range(dataset.rewards, dataset.terminals)
    expected = (dataset.rewards / np.float32(high - low)) * np.float32(1000)
    before = dataset.rewards.copy()
    for kind in (ScaledRewards(), CorlRewards()):
        scaled = kind.modified(dataset, env)
        assert scaled.rewards.dtype == np.float32
        np.testing.assert_array_equal(scaled.rewards, expected)
    np.testing.assert_array_equal(dataset.rewards, before)


def test_rewards_are_scaled_then_multiplied_then_shifted() -> None:
    dataset = transitions([0.1, 0.2, 0.7, 3.3, 0.3], [0, 1, 0, 1, 0])
    scaled = ScaledRewards().modified(dataset, "hopper-medium-v2").rewards
    ours = ScaledRewards(5.0, -1.0).modified(dataset, "hopper-medium-v2")
    np.testing.assert_array_equal(ours.rewards, scaled * 5 - 1)
    elsewhere = ScaledRewards(10.0, -5.0).modified(dataset, "antmaze-umaze-v2")
    np.testing.assert_array_equal(elsewhere.rewards, dataset.rewards * 10 - 5)


def test_antmaze_rewards_lose_one_and_others_stay() -> None:
    dataset = transitions([0, 1, 0.5], [0, 1, 0])
    assert CorlRewards().modified(dataset, "antmaze-umaze-v2").rewards.tolist() == [-1, 0, -0.5]
    assert ScaledRewards().modified(dataset, "antmaze-umaze-v2").rewards.tolist() == [0, 1, 0.5]
    assert CorlRewards().modified(dataset, "pen-human-v1").rewards.tolist() == [0, 1, 0.5]


@pytest.mark.parametrize(("terminals", "message"), [([0, 0], "no complete episode"), ([1, 1], "all returns are equal")])
def test_rewards_without_a_range_cannot_be_scaled(terminals: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ScaledRewards().modified(transitions([1, 1], terminals), "hopper-medium-v2")


def test_antmazes_rewards_are_multiplied_alone() -> None:
    """By 100; other rewards are unchanged because they do not request it."""
    dataset = transitions([1, -2, 3], [0, 1, 0])
    assert HundredfoldRewards().modified(dataset, "antmaze-umaze-v2").rewards.tolist() == [100, -200, 300]
    assert HundredfoldRewards().change(dataset, "antmaze-umaze-v2")(-2.5) == -250
    for modify in (HundredfoldRewards().modified, HundredfoldRewards().change):
        with pytest.raises(InputError, match="AntMaze alone"):
            modify(dataset, "hopper-medium-v2")


def test_true_episodes_scale_rewards() -> None:
    """Episodes end at terminals, at jumps between states and with the file; their returns here are 3, 7 and 13."""
    states = np.array([[0.0], [1.0], [5.0], [6.0], [7.0], [8.0]], np.float32)
    next_states = np.array([[1.0], [2.0], [6.0], [7.0], [8.0], [9.0]], np.float32)
    terminals = np.array([0, 0, 0, 1, 0, 0], np.float32)
    rewards = np.array([1, 2, 3, 4, 6, 7], np.float32)
    dataset = Batch(states, states, rewards, next_states, terminals)
    found = TrueEpisodeRewards().modified(dataset, "silhouettes/hopper-v2")
    np.testing.assert_array_equal(found.rewards, rewards / np.float32(10) * np.float32(1000))
    assert found.rewards.dtype == np.float32


def test_true_episodes_leave_other_families_to_the_common_rule() -> None:
    """AntMaze's rewards are reduced by 1, Adroit's stay; equal returns have no range."""
    dataset = transitions([0, 1], [0, 1])
    np.testing.assert_array_equal(TrueEpisodeRewards().modified(dataset, "antmaze-umaze-v0").rewards, [-1, 0])
    np.testing.assert_array_equal(TrueEpisodeRewards().modified(dataset, "pen-human-v0").rewards, [0, 1])
    with pytest.raises(InputError, match="returns are equal"):
        TrueEpisodeRewards().modified(transitions([1, 1], [1, 1]), "hopper-medium-v2")


def test_antmazes_rewards_are_shifted_alone() -> None:
    """FQL's rule leaves the rewards of locomotion as they are."""
    dataset = transitions([0, 1, 0.5], [0, 1, 0])
    assert ShiftedRewards().modified(dataset, "antmaze-umaze-v2").rewards.tolist() == [-1, 0, -0.5]
    assert ShiftedRewards().change(dataset, "antmaze-umaze-v2")(0.3) == 0.3 - 1
    ogbenchs = f"{OGBENCH}antmaze-large-navigate-singletask-v0"
    for env in ("hopper-medium-v2", "pen-human-v1", ogbenchs):
        assert ShiftedRewards().modified(dataset, env).rewards.tolist() == [0, 1, 0.5]
        assert ShiftedRewards().change(dataset, env)(0.3) == 0.3
    assert dataset.rewards.tolist() == [0, 1, 0.5]


def test_sparse_rewards_say_only_whether_a_task_is_done() -> None:
    """AntMaze's are shifted first, so that a reached goal is 0; one step's reward becomes the same."""
    dataset = transitions([-3, 0, -1, 0.5], [0, 1, 0, 0])
    found = SparseRewards(ShiftedRewards()).modified(dataset, "pen-human-v1").rewards
    assert found.tolist() == [-1, 0, -1, -1]
    assert found.dtype == np.float32
    maze = SparseRewards(ShiftedRewards()).change(dataset, "antmaze-umaze-v2")
    assert [maze(0.0), maze(1.0)] == [-1.0, 0.0]


def test_standard_rewards_have_mean_0_and_deviation_1() -> None:
    """Over all rows, with N - 1 in the variance, whatever the dataset."""
    dataset = transitions([1, 2, 6], [0, 1, 0])
    found = StandardRewards().modified(dataset, "pen-human-v1").rewards
    np.testing.assert_allclose(found, (np.array([1, 2, 6]) - 3) / np.sqrt(7), rtol=1e-6)
    assert found.dtype == np.float32
    with pytest.raises(InputError, match="all are equal"):
        StandardRewards().modified(transitions([1, 1], [1, 1]), "pen-human-v1")
