"""Chunks of successive rows: where episodes end, and batches of chunks in both frameworks."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from corl_jax import acfql as jax_acfql
from corl_torch import acfql
from shared.data.chunks import check_length, extract_in_order
from shared.data.returns import EndedBatch
from shared.errors import InputError
from shared.frameworks import jax_data, torch_data

# Episodes end in rows 2, 5 and 8: by a time limit, by a terminal, and by both; the last one is open.
SIZE, LIMITS, FALLS = 12, (2, 8), (5, 8)


def rows(**others: np.ndarray) -> dict[str, np.ndarray]:
    """A file's arrays."""
    number = np.arange(SIZE, dtype=np.float32)
    return {
        "observations": np.stack([number, -number], axis=1),
        "actions": number[:, None] / 100,
        "rewards": 10 * number,
        "terminals": np.isin(number, FALLS),
        "timeouts": np.isin(number, LIMITS),
        **others,
    }


def test_transitions_are_in_order_with_the_ends_of_episodes() -> None:
    """In D4RL's layout a row that a time limit ended is no transition, so the one before it is the last."""
    found = extract_in_order(rows())
    assert found.observations[:, 0].tolist() == [0, 1, 3, 4, 5, 6, 7, 9, 10]
    assert found.terminals.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert found.last.tolist() == [False, True, False, False, True, False, True, False, True]


def test_every_row_is_a_transition_if_its_next_state_is_known() -> None:
    states = rows()["observations"]
    found = extract_in_order(rows(next_observations=states + 1))
    assert found.observations[:, 0].tolist() == list(range(SIZE))
    assert np.flatnonzero(found.last).tolist() == [2, 5, 8, SIZE - 1]


def test_a_terminal_is_no_end_where_data_go_on() -> None:
    """As in OGBench's data, where only the marked rows end trajectories."""
    ends = np.isin(np.arange(SIZE), (6, SIZE - 1))
    found = extract_in_order(rows(timeouts=ends, trajectory_ends=ends))
    assert found.observations[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert np.flatnonzero(found.last).tolist() == [5, 9]
    assert np.flatnonzero(found.terminals).tolist() == [5, 7]


def plain_chunk(dataset: EndedBatch, first: int, config: Any) -> tuple[Any, ...]:
    """A chunk, row by row."""
    chunk = range(first, first + config.horizon_length)
    valid = [0.0 if any(dataset.last[first:row]) else 1.0 for row in chunk]
    rewards = sum(config.discount**k * float(dataset.rewards[row]) for k, row in enumerate(chunk))
    return (
        dataset.observations[first],
        dataset.actions[list(chunk)],
        rewards,
        dataset.next_observations[chunk[-1]],
        max(dataset.terminals[row] for row in chunk),
        valid,
    )


@pytest.mark.parametrize("horizon_length", [1, 2, 4])
def test_both_twins_take_the_same_chunks(horizon_length: int) -> None:
    """From the first row to the last one that enough rows follow, across the ends of episodes."""
    dataset, config = extract_in_order(rows()), acfql.TrainConfig(horizon_length=horizon_length, discount=0.9)
    indices = np.arange(len(dataset.rewards) - horizon_length + 1)
    ours = acfql.take_chunks(torch_data.to_device(dataset, torch.device("cpu")), torch.as_tensor(indices), config)
    theirs = jax_acfql.take_chunks(jax_data.to_device(dataset), jnp.asarray(indices), config)
    plain = [plain_chunk(dataset, first, config) for first in indices]
    for mine, other, expected in zip(ours, theirs, zip(*plain, strict=True), strict=True):
        np.testing.assert_allclose(mine.numpy(), np.asarray(expected), rtol=1e-6)
        np.testing.assert_allclose(other, np.asarray(expected), rtol=1e-6)


def test_a_chunk_must_fit_into_the_data() -> None:
    dataset = extract_in_order(rows())
    check_length(dataset, 9)
    with pytest.raises(InputError, match="9 transitions: set horizon_length to at most that"):
        check_length(dataset, 10)
