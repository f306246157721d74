"""The measures of a policy on a dataset, against numbers computed by hand."""

import numpy as np
import pytest

from shared.data import measures
from shared.data.episodes import Episodes
from shared.data.measures import find_episodes
from shared.data.transitions import extract_transitions
from shared.errors import InputError


def rows(ends: str, rewards: list[float]) -> dict[str, np.ndarray]:
    """A file's rows: `.` continues, `T` ends in a terminal, `L` at a time limit."""
    marks = np.array(list(ends))
    return {
        "observations": np.arange(len(marks), dtype=np.float32)[:, None],
        "actions": np.zeros((len(marks), 1), np.float32),
        "rewards": np.array(rewards, np.float32),
        "terminals": marks == "T",
        "timeouts": marks == "L",
    }


def test_episodes_are_those_of_the_file() -> None:
    """Three complete ones: a time limit's last row has no transition, but its reward counts. The rest is dropped."""
    raw = rows("..T..LLT...", [1, 2, 3, 10, 20, 30, 500, 7, 9, 9, 9])
    found = find_episodes(raw)
    # The seventh row is an episode of its own without a transition.
    assert extract_transitions(raw).observations[:, 0].tolist() == [0, 1, 2, 3, 4, 7, 8, 9]
    assert found.starts.tolist() == [0, 3, 5]
    assert found.lengths.tolist() == [3, 2, 1]
    assert found.returns.tolist() == [6.0, 60.0, 7.0]
    assert found.size == 6


def test_a_terminal_in_the_last_row_ends_an_episode_whose_last_transition_is_dropped() -> None:
    """As in D4RL's extraction; the reward of that row counts in the return."""
    found = find_episodes(rows("..L..T", [1, 1, 1, 2, 2, 2]))
    assert found.lengths.tolist() == [2, 2]
    assert found.returns.tolist() == [3.0, 6.0]


def test_every_row_is_a_transition_where_the_file_says_what_came_after() -> None:
    """As in Minari's datasets."""
    raw = rows("..L.T", [1, 1, 1, 2, 2])
    found = find_episodes(raw | {"next_observations": raw["observations"] + 1})
    assert found.lengths.tolist() == [3, 2]
    assert found.returns.tolist() == [3.0, 4.0]


def test_a_time_limit_ends_episodes_of_a_file_without_timeouts() -> None:
    raw = rows("......", [1, 2, 3, 4, 5, 6])
    del raw["timeouts"]
    assert find_episodes(raw, 3).returns.tolist() == [6.0, 15.0]


def test_no_complete_episode_is_an_error() -> None:
    with pytest.raises(InputError, match="no episode of the dataset is complete"):
        find_episodes(rows("....", [1, 1, 1, 1]))


# Two episodes, with three transitions and with one
EPISODES = Episodes(np.array([0, 3]), np.array([3, 1]), np.array([6.0, 7.0]))
Q = np.array([1.0, 2.0, 3.0, 10.0], np.float32)
VALUES = np.array([0.0, 4.0, 1.0, 8.0], np.float32)


def test_success_is_a_return_of_the_threshold_or_more() -> None:
    assert measures.successes(EPISODES, 7.0).tolist() == [False, False, False, True]
    assert measures.successes(EPISODES, 6.0).all()
    # Exactly, although float32 would round
    near = EPISODES._replace(returns=np.array([6.0, np.nextafter(7.0, 0.0)]))
    with pytest.raises(InputError, match="no episode reaches a return_threshold of 7, the best one returns 7: set it"):
        measures.successes(near, 7.0)


def test_soft_opc() -> None:
    """The mean over successes' transitions less the mean over all: 10 - 4, and 0 where all succeed."""
    assert measures.soft_opc(Q, np.array([False, False, False, True])) == 6.0
    assert measures.soft_opc(Q, np.array([True, True, True, False])) == -2.0
    assert measures.soft_opc(Q, np.ones(4, bool)) == 0.0


def test_initial_state_value() -> None:
    """One value per episode, however long."""
    found = measures.initial_state_value(VALUES, EPISODES)
    assert found.tolist() == [0.0, 8.0]
    assert found.dtype == np.float64


def test_td_error() -> None:
    """1 - (1 + 2), and 2 - 2 after a terminal, squared: (4 + 0) / 2."""
    given = {"rewards": np.array([1.0, 2.0]), "next_values": np.array([4.0, 100.0]), "terminals": np.array([0.0, 1.0])}
    assert measures.td_error(np.array([1.0, 2.0]), **given, discount=0.5) == 2.0


def test_discounted_advantage() -> None:
    """Advantages 1, -2, 2 | 2: sums 0.5, -1, 2 | 2; nothing flows from one episode into the other."""
    assert measures.discounted_advantage(Q, VALUES, EPISODES, 0.5) == (0.5 - 1.0 + 2.0 + 2.0) / 4


def test_an_episode_is_not_cut_after_1024_transitions() -> None:
    """As d3rlpy would cut it: advantages of 1 without discount add up to the end, to 1025."""
    episodes = Episodes(np.array([0]), np.array([1025]), np.array([0.0]))
    found = measures.discounted_advantage(np.ones(1025, np.float32), np.zeros(1025, np.float32), episodes, 1.0)
    assert found == (1025 + 1) / 2


def test_action_difference() -> None:
    """Summed over components, then the mean over rows: (1 + 4 + 0) / 2."""
    actions = np.array([[1.0, 2.0], [3.0, 3.0]], np.float32)
    assert measures.action_difference(actions, np.array([[0.0, 0.0], [3.0, 3.0]], np.float32)) == 2.5
