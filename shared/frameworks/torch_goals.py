"""Goals of a batch in PyTorch. `shared/frameworks/jax_goals.py` has the same names for JAX."""

import numpy as np
import torch
from torch import Tensor

from shared.data.goals import Draws, GoalBatch, GoalTransitions, HierarchicalBatch, Shares, goal_rows
from shared.frameworks.torch_data import take


def draw_later(size: int, geometric: bool, discount: float) -> np.ndarray:
    """The numbers (B,) that choose later states, see `Draws`, from NumPy's global generator."""
    return np.random.geometric(1.0 - discount, size) if geometric else np.random.random_sample(size)


def draw_goals(rows: np.ndarray, last: np.ndarray, shares: Shares, discount: float) -> np.ndarray:
    """The rows (B,) of goals for the states of `rows` (B,), drawn in the order of OGBench's code.

    Args:
        rows: (B,).
        last: (N,), the last row of each row's trajectory.
        shares: The kinds of goals.
        discount: The discount per step of the geometric distribution.
    """
    size = len(rows)
    anywhere = np.random.randint(len(last), size=size)
    later = draw_later(size, shares.geometric, discount)
    # OGBench's code draws these two only if they can decide anything.
    choices = (rows, rows) if shares.here == 1.0 else (np.random.random_sample(size), np.random.random_sample(size))
    return goal_rows(rows, last[rows], Draws(anywhere, later, *choices), shares)


def take_goals(dataset: GoalTransitions, indices: Tensor, negative: bool) -> GoalBatch:
    """The batch of the rows `indices` (3, B): those of the states, of the value goals and of the policy's goals.

    Args:
        dataset: The transitions.
        indices: The rows. A state is in its goal if their rows are equal.
        negative: Whether rewards are 0 in the goal and otherwise -1, rather than 1 and 0.
    """
    found = take(dataset, indices[0])
    value_goals, actor_goals = dataset.observations[indices[1:]]
    outcomes = outcome(indices[0], indices[1], negative, found.observations)
    return GoalBatch(*found[:3], value_goals, actor_goals, *outcomes)


def take_hierarchy(dataset: GoalTransitions, indices: Tensor, negative: bool) -> HierarchicalBatch:
    """The batch of the rows `indices` (5, B): states, value goals, low goals, high goals and their targets.

    The arguments are as for `take_goals`.
    """
    found = take(dataset, indices[0])
    value_goals, low_goals, high_goals, high_targets = dataset.observations[indices[1:]]
    outcomes = outcome(indices[0], indices[1], negative, found.observations)
    return HierarchicalBatch(*found[:3], value_goals, low_goals, high_goals, high_targets, *outcomes)


def outcome(rows: Tensor, goals: Tensor, negative: bool, like: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards (B,) and masks (B,) of states whose goals are the rows `goals` (B,), in the type of `like`."""
    success = torch.eq(rows, goals).to(like.dtype)
    return success - 1.0 * negative, 1.0 - success
