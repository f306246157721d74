"""Transitions over several steps, against sums computed by hand."""

from typing import Any

import numpy as np
import pytest

from shared.data.nsteps import extract_n_steps
from shared.data.transitions import Batch, extract_transitions

GAMMA = 0.5


def rows(terminals: list[int], timeouts: list[int], **more: Any) -> dict[str, np.ndarray]:
    """Five rows per episode; states are the rows' numbers, and rewards count from 1 in each episode."""
    size = len(terminals)
    return {
        "observations": np.arange(size, dtype=np.float32)[:, None],
        "actions": 10.0 + np.arange(size, dtype=np.float32)[:, None],
        "rewards": 1.0 + np.arange(size, dtype=np.float32) % 5,
        "terminals": np.array(terminals),
        "timeouts": np.array(timeouts),
        **more,
    }


def values(found: Batch) -> list[tuple[float, ...]]:
    """For each transition: its state, its reward, its next state, and the weight of the value there, in steps."""
    columns = found.observations[:, 0], found.rewards, found.next_observations[:, 0], 1.0 - found.terminals
    return [tuple(float(value) for value in row) for row in zip(*columns, strict=True)]


TERMINAL, TIME_LIMIT, NEITHER = [0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]
# For an episode with rewards 1 to 5: sums of up to three steps; the value is weighted by 1, 0.5 or 0.25
TERMINATED = [(0, 2.75, 3, 0.25), (1, 4.5, 4, 0.25), (2, 6.25, 5, 0), (3, 6.5, 5, 0), (4, 5, 5, 0)]
CUT = [(0, 2.75, 3, 0.25), (1, 4.5, 4, 0.25), (2, 5, 4, 0.5), (3, 4, 4, 1)]


def shifted(transitions: list[tuple[float, ...]], by: int) -> list[tuple[float, ...]]:
    """The same transitions in a later episode."""
    return [(state + by, reward, following + by, counts) for state, reward, following, counts in transitions]


def test_a_terminal_state_ends_the_sum_with_its_reward_and_a_time_limit_before_its_own() -> None:
    """In D4RL's layout, whose last row has no next state."""
    raw = rows(TERMINAL + NEITHER + NEITHER, NEITHER + TIME_LIMIT + NEITHER)
    found = values(extract_n_steps(raw, n_steps=3, discount=GAMMA))
    assert found == TERMINATED + shifted(CUT, 5) + shifted(CUT, 10)


def test_where_every_next_state_is_known_a_time_limits_own_reward_counts_too() -> None:
    """As in Minari's datasets, where both may end a row."""
    following = 100.0 + np.arange(15, dtype=np.float32)[:, None]
    raw = rows(TERMINAL + NEITHER + TERMINAL, NEITHER + TIME_LIMIT + TIME_LIMIT, next_observations=following)
    found = values(extract_n_steps(raw, n_steps=3, discount=GAMMA))
    known = [(0, 2.75, 102, 0.25), (1, 4.5, 103, 0.25), (2, 6.25, 104, 0), (3, 6.5, 104, 0), (4, 5, 104, 0)]
    counts = [0.25, 0.25, 0.25, 0.5, 1]
    assert found[:5] == known
    assert found[5:10] == [(*row[:3], count) for row, count in zip(shifted(known, 5), counts, strict=True)]
    assert found[10:] == shifted(known, 10)


@pytest.mark.parametrize("known", [False, True])
def test_one_step_is_the_transitions_as_they_are(known: bool) -> None:
    """Bitwise equal, including rows with both flags and an open end."""
    rng = np.random.default_rng(0)
    size = 200
    raw = {
        "observations": rng.normal(size=(size, 3)).astype(np.float32),
        "actions": rng.normal(size=(size, 2)).astype(np.float32),
        "rewards": rng.normal(size=size).astype(np.float32),
        "terminals": rng.random(size) < 0.2,
        "timeouts": rng.random(size) < 0.2,
    }
    if known:
        raw["next_observations"] = rng.normal(size=(size, 3)).astype(np.float32)
    assert (raw["terminals"] & raw["timeouts"]).any()
    plain = extract_transitions(raw)
    found = extract_n_steps(raw, n_steps=1, discount=0.9)
    for name in Batch._fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
