"""Goals: their probabilities are OGBench's, and both frameworks choose the same rows from the same numbers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy import stats

from shared.data.goals import Draws, GoalTransitions, Shares, check_shares, extract_goals, goal_rows, later_rows
from shared.errors import InputError
from shared.frameworks import jax_data, jax_goals, torch_data, torch_goals, torch_side

# Trajectories of 12, 1 and 7 transitions
LAST = np.repeat([11, 12, 19], [12, 1, 7])
DISCOUNT = 0.8
SIZE = 1_000_000
# Least probability of a chi-square statistic as large as the one that is found
CHANCE = 1e-6


def raw() -> dict[str, np.ndarray]:
    """A file whose trajectories have a row more than transitions."""
    timeouts = np.zeros(23, bool)
    timeouts[[12, 14, 22]] = True
    rng = np.random.default_rng(0)
    columns = {"observations": rng.normal(size=(23, 3)), "actions": rng.normal(size=(23, 2))}
    return columns | {"rewards": np.zeros(23), "terminals": np.zeros(23, bool), "timeouts": timeouts}


def test_a_trajectorys_last_row_is_only_a_next_state() -> None:
    rows = raw()
    found = extract_goals(rows)
    kept = [row for row in range(23) if row not in (12, 14, 22)]
    assert np.array_equal(found.last, LAST)
    assert np.array_equal(found.observations, rows["observations"][kept].astype(np.float32))
    assert np.array_equal(found.next_observations, rows["observations"][[row + 1 for row in kept]].astype(np.float32))


def expected(row: int, shares: Shares) -> np.ndarray:
    """The probability of each row to be the goal of one row."""
    last, chances = int(LAST[row]), np.zeros(len(LAST))
    steps = last - row
    if steps and shares.geometric:
        chances[row + 1 : last] = (1 - DISCOUNT) * DISCOUNT ** np.arange(steps - 1)
        chances[last] = 1 - chances.sum()
    elif steps > 1:
        # Rounding gives the first and the last half the weight of the others.
        chances[row + 1 : last + 1] = [0.5, *[1.0] * (steps - 2), 0.5]
        chances /= chances.sum()
    else:
        chances[last] = 1.0
    chances = shares.trajectory * chances + shares.anywhere / len(LAST)
    chances[row] += shares.here
    return chances


def by_torch(rows: np.ndarray, shares: Shares) -> np.ndarray:
    torch_side.seed_everything(0)
    return torch_goals.draw_goals(rows, LAST, shares, DISCOUNT)


def by_jax(rows: np.ndarray, shares: Shares) -> np.ndarray:
    return np.asarray(jax_goals.draw_goals(jax.random.key(0), jnp.asarray(rows), LAST, shares, DISCOUNT))


@pytest.mark.thorough
@pytest.mark.parametrize("draw", [by_torch, by_jax])
@pytest.mark.parametrize("shares", [Shares(0.2, 0.5, 0.3, True), Shares(0.0, 1.0, 0.0, False)])
@pytest.mark.parametrize("row", [0, 10, 11])
def test_goals_have_the_references_probabilities(draw: Callable[..., np.ndarray], shares: Shares, row: int) -> None:
    counts = np.bincount(draw(np.full(SIZE, row), shares), minlength=len(LAST))
    chances = expected(row, shares)
    possible = chances > 0
    assert not counts[~possible].any()
    if possible.sum() > 1:
        assert stats.chisquare(counts[possible], SIZE * chances[possible]).pvalue > CHANCE


@pytest.mark.parametrize("draw", [by_torch, by_jax])
def test_a_goal_may_always_be_the_state_itself(draw: Callable[..., np.ndarray]) -> None:
    rows = np.arange(len(LAST))
    assert np.array_equal(draw(rows, Shares(1.0, 0.0, 0.0, True)), rows)


@pytest.mark.parametrize("geometric", [True, False])
def test_equal_numbers_choose_equal_rows(geometric: bool) -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(len(LAST), size=10_000)
    uniform = rng.random((3, len(rows))).astype(np.float32)
    later = rng.geometric(0.2, len(rows)) if geometric else uniform[2]
    draws = Draws(rng.integers(len(LAST), size=len(rows)), later, *uniform[:2])
    shares = Shares(0.2, 0.5, 0.3, geometric)
    ours = goal_rows(rows, LAST[rows], draws, shares)
    theirs = goal_rows(jnp.asarray(rows), jnp.asarray(LAST)[rows], Draws(*map(jnp.asarray, draws)), shares, jnp)
    assert np.array_equal(ours, np.asarray(theirs))


def test_single_precision_finds_rows_of_large_datasets() -> None:
    rows = np.array([10_000_000, 10_000_000, 10_000_000])
    found = later_rows(jnp.asarray(rows), jnp.asarray(rows + 901), jnp.asarray([0.0, 0.5, 0.9999]), False, jnp)
    assert np.asarray(found).tolist() == [10_000_901, 10_000_451, 10_000_001]


def test_batches_are_equal_and_succeed_by_row_alone() -> None:
    """Two equal states in different rows are no success, and rows that are equal are one."""
    found = extract_goals(raw())
    found = found._replace(observations=np.repeat(found.observations[::2], 2, axis=0))
    indices = np.array([[0, 1, 2, 5], [0, 0, 3, 5], [4, 1, 2, 19]])
    for negative, outcomes in ((True, [0, -1, -1, 0]), (False, [1, 0, 0, 1])):
        torchs = torch_goals.take_goals(
            torch_data.to_device(found, torch.device("cpu")), torch.as_tensor(indices), negative
        )
        jaxs = jax_goals.take_goals(jax_data.to_device(found), jnp.asarray(indices), negative)
        for ours, theirs in zip(torchs, jaxs, strict=True):
            assert np.array_equal(ours.numpy(), np.asarray(theirs))
        assert torchs.rewards.tolist() == outcomes
        assert torchs.masks.tolist() == [0, 1, 1, 0]
        assert np.array_equal(torchs.actor_goals.numpy(), found.observations[indices[2]])


def test_a_hierarchys_batches_are_equal() -> None:
    found = extract_goals(raw())
    indices = np.random.default_rng(0).integers(len(LAST), size=(5, 30))
    dataset = torch_data.to_device(found, torch.device("cpu"))
    ours = torch_goals.take_hierarchy(dataset, torch.as_tensor(indices), True)
    theirs = jax_goals.take_hierarchy(jax_data.to_device(found), jnp.asarray(indices), True)
    for mine, other in zip(ours, theirs, strict=True):
        assert np.array_equal(mine.numpy(), np.asarray(other))
    assert np.array_equal(ours.high_targets.numpy(), found.observations[indices[4]])


def test_the_ends_of_trajectories_come_back_from_the_packed_rows() -> None:
    packed = jax_data.to_device(GoalTransitions(*extract_goals(raw())))
    assert np.asarray(jax_goals.last_rows(packed)).tolist() == LAST.tolist()


def test_shares_must_sum_to_one() -> None:
    check_shares("actor", Shares(0.1, 0.2, 0.7, True))
    with pytest.raises(InputError, match=r"actor_p_curgoal, .* sum to 0.9: change them so that they sum to 1"):
        check_shares("actor", Shares(0.1, 0.2, 0.6, True))
