"""Goals of goal-conditioned algorithms: later states of a row's own trajectory, or states of any row.

A goal is a whole observation, so a batch names it by a row of the dataset. The rules are OGBench's. Rows are counted as
transitions: a trajectory's last row in the file is only a next state, never a state or a goal.

Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, 2024, https://arxiv.org/abs/2410.20092
"""

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from shared.data.episodes import of_each_transition
from shared.data.transitions import extract_transitions
from shared.errors import InputError


class GoalTransitions(NamedTuple):
    """A dataset of N transitions without rewards, trajectory after trajectory.

    Attributes:
        observations: (N, S).
        actions: (N, A).
        next_observations: (N, S).
        last: (N,) integers, the last transition of each one's trajectory.
    """

    observations: Any
    actions: Any
    next_observations: Any
    last: Any


class GoalBatch(NamedTuple):
    """A batch of B transitions with goals.

    Attributes:
        observations: (B, S).
        actions: (B, A).
        next_observations: (B, S).
        value_goals: (B, S), from which values are learnt.
        actor_goals: (B, S), from which the policy is learnt.
        rewards: (B,), for the value goals: 0 in the goal, otherwise -1; or 1 and 0.
        masks: (B,), 0 in the goal, where no value follows, otherwise 1.
    """

    observations: Any
    actions: Any
    next_observations: Any
    value_goals: Any
    actor_goals: Any
    rewards: Any
    masks: Any


class HierarchicalBatch(NamedTuple):
    """A batch of B transitions with goals for two levels of a policy; see `GoalBatch` for the other columns.

    Attributes:
        low_goals: (B, S), the states some steps later, which the low level learns to reach.
        high_goals: (B, S), the goals of the high level.
        high_targets: (B, S), the states some steps later on the way to them.
    """

    observations: Any
    actions: Any
    next_observations: Any
    value_goals: Any
    low_goals: Any
    high_goals: Any
    high_targets: Any
    rewards: Any
    masks: Any


class Draws(NamedTuple):
    """The random numbers behind B goals.

    Attributes:
        anywhere: (B,), a row of the dataset.
        later: (B,), the number of steps to a later state, from 1; or uniform in [0, 1), if all later states are equally
            likely.
        from_trajectory: (B,), uniform in [0, 1): whether the goal is the later state.
        here: (B,), uniform in [0, 1): whether the goal is the row itself, whatever the number above says.
    """

    anywhere: Any
    later: Any
    from_trajectory: Any
    here: Any


class Shares(NamedTuple):
    """The shares of goals that are the row itself, a later state of its trajectory, and any state; they sum to 1.

    With `geometric`, a state k steps later has the probability (1 - discount) discount^(k - 1), and the last state all
    that is left.
    """

    here: float
    trajectory: float
    anywhere: float
    geometric: bool


def extract_goals(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> GoalTransitions:
    """Extracts transitions as `extract_transitions` does, with the ends of their trajectories in place of rewards.

    Raises:
        InputError: As for `extract_transitions`.
    """
    found = extract_transitions(raw, max_episode_steps)
    episodes = of_each_transition(raw, max_episode_steps)
    last = np.searchsorted(episodes, episodes, side="right") - 1
    return GoalTransitions(found.observations, found.actions, found.next_observations, last)


def check_shares(of: str, shares: Shares) -> None:
    """Checks that shares of goals sum to 1.

    Raises:
        InputError: They do not.
    """
    total = shares.here + shares.trajectory + shares.anywhere
    if abs(total - 1.0) > 1e-6:
        raise InputError(
            f"{of}_p_curgoal, {of}_p_trajgoal and {of}_p_randomgoal sum to {total:g}: change them so that they sum to 1"
        )


def later_rows(rows: Any, last: Any, later: Any, geometric: bool, xp: ModuleType = np) -> Any:
    """Rows (B,) of later states in the trajectories of `rows`, which end in the rows `last`.

    Among equally likely states, the first and the last have half the weight of the others, because a number is rounded.

    Args:
        rows: (B,).
        last: (B,).
        later: (B,), as in `Draws`.
        geometric: As in `Shares`.
        xp: The library of the arrays, NumPy or `jax.numpy`.
    """
    if geometric:
        return xp.minimum(rows + later, last)
    # The distance to the end, not the row's number, so that single precision suffices
    steps = last - xp.minimum(rows + 1, last)
    return last - xp.rint(steps * later).astype(rows.dtype)


def goal_rows(rows: Any, last: Any, draws: Draws, shares: Shares, xp: ModuleType = np) -> Any:
    """The rows (B,) of goals for the states of `rows`; the arguments are as for `later_rows`."""
    if shares.here == 1.0:
        return rows
    later = later_rows(rows, last, draws.later, shares.geometric, xp)
    chosen = xp.where(draws.from_trajectory < shares.trajectory / (1.0 - shares.here), later, draws.anywhere)
    return xp.where(draws.here < shares.here, rows, chosen)
