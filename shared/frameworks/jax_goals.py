"""Goals of a batch in JAX, drawn and taken on the device. `shared/frameworks/torch_goals.py` has the same names."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from shared.data.goals import Draws, GoalBatch, HierarchicalBatch, Shares, goal_rows
from shared.frameworks.jax_data import PackedDataset, take


def draw_later(key: Array, size: int, geometric: bool, discount: float) -> Array:
    """The numbers (B,) that choose later states, see `Draws`."""
    if geometric:
        return jax.random.geometric(key, 1.0 - discount, (size,), int)
    return jax.random.uniform(key, (size,))


def draw_goals(key: Array, rows: Array, last: ArrayLike, shares: Shares, discount: float) -> Array:
    """The rows (B,) of goals for the states of `rows` (B,).

    Args:
        key: The key of all draws.
        rows: (B,).
        last: (N,), the last row of each row's trajectory.
        shares: The kinds of goals.
        discount: The discount per step of the geometric distribution.
    """
    last, size = jnp.asarray(last), len(rows)
    anywhere_key, later_key, trajectory_key, here_key = jax.random.split(key, 4)
    draws = Draws(
        anywhere=jax.random.randint(anywhere_key, (size,), 0, len(last)),
        later=draw_later(later_key, size, shares.geometric, discount),
        from_trajectory=jax.random.uniform(trajectory_key, (size,)),
        here=jax.random.uniform(here_key, (size,)),
    )
    return goal_rows(rows, last[rows], draws, shares, jnp)


def last_rows(dataset: PackedDataset) -> Array:
    """The last row (N,) of each row's trajectory, from a packed dataset of `GoalTransitions`."""
    return dataset.rows[:, -1].astype(int)


def take_goals(dataset: PackedDataset, indices: Array, negative: bool) -> GoalBatch:
    """The batch of the rows `indices` (3, B): those of the states, of the value goals and of the policy's goals.

    Args:
        dataset: The transitions.
        indices: The rows. A state is in its goal if their rows are equal.
        negative: Whether rewards are 0 in the goal and otherwise -1, rather than 1 and 0.
    """
    found = take(dataset, indices)
    observations, value_goals, actor_goals = found.observations
    outcomes = outcome(indices[0], indices[1], negative)
    return GoalBatch(observations, found.actions[0], found.next_observations[0], value_goals, actor_goals, *outcomes)


def take_hierarchy(dataset: PackedDataset, indices: Array, negative: bool) -> HierarchicalBatch:
    """The batch of the rows `indices` (5, B): states, value goals, low goals, high goals and their targets.

    The arguments are as for `take_goals`.
    """
    found = take(dataset, indices)
    observations, value_goals, low_goals, high_goals, high_targets = found.observations
    outcomes = outcome(indices[0], indices[1], negative)
    own = observations, found.actions[0], found.next_observations[0]
    return HierarchicalBatch(*own, value_goals, low_goals, high_goals, high_targets, *outcomes)


def outcome(rows: Array, goals: Array, negative: bool) -> tuple[Array, Array]:
    """Rewards (B,) and masks (B,) of states whose goals are the rows `goals` (B,)."""
    success = jnp.equal(rows, goals).astype(float)
    return success - 1.0 * negative, 1.0 - success
