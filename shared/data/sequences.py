"""Trajectories: training data for sequence models such as Decision Transformer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shared.data.episodes import of_rows
from shared.data.transitions import normalise
from shared.envs.evaluation import ContextPolicy
from shared.errors import InputError

Predict = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Any]


class Trajectories(NamedTuple):
    """Whole trajectories one after the other, one row per step: N rows in all.

    Attributes:
        observations: (N, S).
        actions: (N, A).
        returns: (N,), the return-to-go: the undiscounted sum of the trajectory's rewards from this step on.
        timesteps: (N,), the step's number in its trajectory, from 0.
        remaining: (N,), the number of the trajectory's rows from this one on, including it.
    """

    observations: Any
    actions: Any
    returns: Any
    timesteps: Any
    remaining: Any


class Windows(NamedTuple):
    """A batch of pieces of trajectories, K steps each.

    Attributes:
        observations: (B, K, S).
        actions: (B, K, A).
        returns: (B, K), the returns-to-go.
        timesteps: (B, K), integers: each step's number in its trajectory.
        mask: (B, K), 1 for steps of the trajectory and 0 for padding, where everything except the time steps is 0.
    """

    observations: Any
    actions: Any
    returns: Any
    timesteps: Any
    mask: Any


def split_trajectories(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> Trajectories:
    """Splits the rows of a file as CORL's Decision Transformer does: a terminal or a timeout closes a trajectory.

    Unlike in `extract_transitions`, no row is dropped within trajectories, but rows after the last close are.

    Args:
        raw: The arrays of `read_hdf5`.
        max_episode_steps: Time limit in steps; used only if there are no `timeouts`.

    Returns:
        The trajectories, float32; returns are not scaled.

    Raises:
        InputError: No row closes a trajectory, or neither timeouts nor a time limit say where they end.
    """
    found = of_rows(raw, max_episode_steps)
    if not found.size:
        raise InputError("the dataset holds no complete trajectory: mark their ends in 'terminals' or 'timeouts'")
    rows, lengths = found.size, found.lengths
    timesteps = np.arange(rows) - np.repeat(found.starts, lengths)
    rewards = raw["rewards"][:rows].astype(np.float32, copy=False)
    return Trajectories(
        observations=raw["observations"][:rows].astype(np.float32, copy=False),
        actions=raw["actions"][:rows].astype(np.float32, copy=False),
        returns=np.concatenate([returns_to_go(piece) for piece in np.split(rewards, found.starts[1:])]),
        timesteps=timesteps.astype(np.float32),
        remaining=(np.repeat(lengths, lengths) - timesteps).astype(np.float32),
    )


def returns_to_go(rewards: np.ndarray) -> np.ndarray:
    """The sum of the rewards (T,) from each step on, summed backwards in the rewards' own type."""
    return np.cumsum(rewards[::-1])[::-1]


def state_statistics(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (S,) and population standard deviation plus 1e-6 (S,) of all rows (N, S), computed in the rows' own type.

    The results are float32, like the networks, even for a float64 file.
    """
    mean, std = observations.mean(axis=0), observations.std(axis=0) + 1e-6
    return mean.astype(np.float32), std.astype(np.float32)


def normalise_states(
    dataset: Trajectories,
    observations: np.ndarray,
    statistics: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] = state_statistics,
) -> tuple[Trajectories, np.ndarray, np.ndarray]:
    """Normalises trajectories by statistics of a file's `observations` (N, S); also returns mean and deviation (S,)."""
    mean, std = statistics(observations)
    return dataset._replace(observations=normalise(dataset.observations, mean, std)), mean, std


def trajectory_lengths(dataset: Trajectories) -> np.ndarray:
    """The number of rows of each trajectory, in order."""
    return np.asarray(dataset.remaining)[np.asarray(dataset.timesteps) == 0].astype(int)


class PromptedPolicy(ContextPolicy):
    """Queries a sequence model for actions, from each episode's last K steps and its remaining target return."""

    def __init__(self, predict: Predict, prompt: float, reward_scale: float, seq_len: int, action_dim: int) -> None:
        """Prepares the histories, which are cleared when an evaluation begins.

        Args:
            predict: Maps windows of observations (E, K, S), actions (E, K, A), returns-to-go (E, K) and time steps (E,
                K) to actions (E, K, A). The action at a step may only depend on what comes before it in the window.
            prompt: The target return.
            reward_scale: The factor on returns.
            seq_len: K.
            action_dim: A.
        """
        self._predict, self._prompt, self._reward_scale = predict, prompt, reward_scale
        self._seq_len, self._action_dim = seq_len, action_dim
        self._windows: list[np.ndarray] = []
        self._now = np.empty(0, int)

    def __call__(self, observations: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The next action of each episode; histories fill from the front, then shift by a step each time."""
        episodes, last = np.arange(len(observations)), np.minimum(lengths, self._seq_len - 1)
        if not self._windows or not lengths.any():
            sizes = ((observations.shape[1],), (self._action_dim,), ())
            self._windows = [np.zeros((len(episodes), self._seq_len, *size), np.float32) for size in sizes]
        full = lengths >= self._seq_len
        for window in self._windows:
            window[full, :-1] = window[full, 1:]
        to_go = self._reward_scale * (self._prompt - returns)
        for window, now in zip(self._windows, (observations, 0.0, to_go), strict=True):
            window[episodes, last] = now
        timesteps = (lengths - last)[:, None] + np.arange(self._seq_len)
        seen, taken, promised = self._windows
        actions = np.asarray(self._predict(seen, taken, promised, timesteps))[episodes, last]
        taken[episodes, last] = actions
        self._now = last
        return actions

    def correct(self, actions: np.ndarray) -> None:
        """Replaces the actions that were just returned by those that were taken instead, (n_episodes, A)."""
        self._windows[1][np.arange(len(actions)), self._now] = actions
