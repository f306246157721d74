"""Kinds of rewards: how each reference changes a dataset's rewards before training, or ranks trajectories by them.

Most kinds need trajectories, but extracted transitions don't mark their ends. CORL cuts the rows into pieces, and so
does this module for D4RL's names and the bundled robots' datasets. For every other dataset you pass `episodes`, which
its file marks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.data.episodes import Episodes
from shared.data.transitions import Batch
from shared.envs.families import known
from shared.errors import InputError
from shared.names import OGBENCH, OGBENCH_ENVS


def is_locomotion(env: str) -> bool:
    """Whether rewards are scaled for this dataset or environment."""
    facts = known(env)
    return facts is not None and facts.rewards == "locomotion"


def is_antmaze(env: str) -> bool:
    """Whether this dataset or environment is an antmaze with D4RL's rewards, which OGBench's does not have."""
    facts = known(env)
    return facts is not None and facts.rewards == "antmaze"


def pieces(terminals: np.ndarray, max_length: int = 1000) -> list[slice]:
    """The pieces that transitions fall into, as CORL cuts them when it needs trajectories.

    A piece ends at a terminal or after `max_length` transitions; an open last piece does not count. Rows ended by a
    time limit are gone from a dataset without a mark, so pieces drift across the borders of episodes.

    Args:
        terminals: (N,).
        max_length: Length in transitions; 1000 for every environment, whatever its time limit.
    """
    found, start = [], 0
    for row, terminal in enumerate(terminals.tolist()):
        if terminal or row - start + 1 == max_length:
            found.append(slice(start, row + 1))
            start = row + 1
    return found


def return_range(
    rewards: np.ndarray, terminals: np.ndarray, max_length: int = 1000, episodes: Episodes | None = None
) -> tuple[float, float]:
    """The smallest and the largest return of the episodes of transitions, by default of their `pieces`.

    Args:
        rewards: (N,).
        terminals: (N,).
        max_length: Length of a piece, in transitions.
        episodes: The episodes of the transitions; None to use CORL's pieces.

    Returns:
        The smallest and the largest return, summed in float64.

    Raises:
        InputError: No episode or piece is complete.
    """
    found = pieces(terminals, max_length) if episodes is None else episodes.slices()
    returns = [float(np.cumsum(rewards[piece], dtype=np.float64)[-1]) for piece in found]
    if not returns:
        raise InputError("rewards cannot be scaled: the dataset has no complete episode; set normalize_reward to false")
    return min(returns), max(returns)


def _unchanged(rewards: Any) -> Any:
    return rewards


@dataclass(frozen=True)
class Rewards:
    """Rewards as the dataset has them: the simplest kind, and the base of all others."""

    def change(self, dataset: Any, env: str, episodes: Episodes | None = None) -> Callable[[Any], Any]:
        """The function that changes a dataset's rewards (N,) in float32, or one step's reward in float64.

        Args:
            dataset: The transitions as extracted, whose returns determine the scale once and for all.
            env: The dataset or environment, whose family `shared.envs.families` knows.
            episodes: The episodes of the transitions; None to cut them into CORL's `pieces`.

        Raises:
            InputError: The returns have no range, or this kind is for other tasks.
        """
        return _unchanged

    def modified(self, dataset: Any, env: str, episodes: Episodes | None = None) -> Any:
        """A copy of the transitions with changed rewards, under the arguments and errors of `change`."""
        return dataset._replace(rewards=self.change(dataset, env, episodes)(dataset.rewards))

    def where(self, asked: bool) -> "Rewards":
        """This kind if a setting turns it on, otherwise unchanged rewards."""
        return self if asked else AS_THEY_ARE


AS_THEY_ARE = Rewards()
"""For an algorithm that doesn't change rewards."""


@dataclass(frozen=True)
class ScaledRewards(Rewards):
    """Rewards divided by the range of returns, then multiplied by 1000, by `factor`, and shifted.

    CQL applies a factor and a shift to every dataset. If the rows are cut into CORL's pieces, only locomotion rewards
    are scaled, as in CORL.
    """

    factor: float = 1.0
    shift: float = 0.0

    def change(self, dataset: Any, env: str, episodes: Episodes | None = None) -> Callable[[Any], Any]:
        """As for `Rewards`."""
        if not _is_scaled(env, episodes):
            return lambda reward: reward * self.factor + self.shift
        spread = _difference(*return_range(dataset.rewards, dataset.terminals, episodes=episodes))
        return lambda reward: reward / spread * 1000 * self.factor + self.shift


@dataclass(frozen=True)
class CorlRewards(Rewards):
    """For TD3+BC, IQL and AWAC: subtracts 1 from antmaze rewards, and scales others so that returns span 1000."""

    def change(self, dataset: Any, env: str, episodes: Episodes | None = None) -> Callable[[Any], Any]:
        """As for `Rewards`."""
        if is_antmaze(env):
            return lambda reward: reward - 1
        if not _is_scaled(env, episodes):
            return _unchanged
        spread = self._spread(dataset, episodes)
        return lambda reward: reward / spread * 1000

    def _spread(self, dataset: Any, episodes: Episodes | None) -> float:
        return _difference(*return_range(dataset.rewards, dataset.terminals, episodes=episodes))


@dataclass(frozen=True)
class TrueEpisodeRewards(CorlRewards):
    """For XQL: like `CorlRewards`, but with the returns of true episodes, including an unfinished last one.

    Without `episodes`, an episode ends at a terminal, or if the next transition starts in a different state than the
    one that was reached. Returns are summed in float32, row by row.
    """

    def _spread(self, dataset: Any, episodes: Episodes | None) -> float:
        if episodes is not None:
            return super()._spread(dataset, episodes)
        jumps = np.linalg.norm(dataset.observations[1:] - dataset.next_observations[:-1], axis=1) > 1e-6
        starts = 1 + np.flatnonzero(jumps | (dataset.terminals[:-1] == 1.0))
        returns = [np.cumsum(episode)[-1] for episode in np.split(dataset.rewards, starts)]
        return _difference(min(returns), max(returns))


@dataclass(frozen=True)
class HundredfoldRewards(Rewards):
    """For ReBRAC: multiplies antmaze rewards by 100 without a shift, and refuses other tasks."""

    def change(self, dataset: Any, env: str, episodes: Episodes | None = None) -> Callable[[Any], Any]:
        """As for `Rewards`."""
        if not is_antmaze(env):
            raise InputError("rewards are scaled for AntMaze alone: set normalize_reward to false")
        return lambda reward: 100.0 * reward


@dataclass(frozen=True)
class ShiftedRewards(Rewards):
    """For FQL: subtracts 1 from antmaze rewards and leaves all others unchanged, even locomotion."""

    def change(self, dataset: Any, env: str, episodes: Episodes | None = None) -> Callable[[Any], Any]:
        """As for `Rewards`."""
        return (lambda reward: reward - 1) if is_antmaze(env) else _unchanged


@dataclass(frozen=True)
class SparseRewards(Rewards):
    """For ACFQL: changes rewards as another kind does; then each becomes -1, except for those that are 0."""

    of: Rewards

    def change(self, dataset: Any, env: str, episodes: Episodes | None = None) -> Callable[[Any], Any]:
        """As for `Rewards`."""
        change = self.of.change(dataset, env, episodes)
        return lambda reward: (change(reward) == 0.0) - np.float32(1.0)


@dataclass(frozen=True)
class StandardRewards(Rewards):
    """For Diffusion-QL: mean 0 and standard deviation 1 over all rewards, whose variance is divided by N - 1."""

    def change(self, dataset: Any, env: str, episodes: Episodes | None = None) -> Callable[[Any], Any]:
        """As for `Rewards`.

        Raises:
            InputError: All rewards are equal.
        """
        mean, std = float(dataset.rewards.mean()), float(dataset.rewards.std(ddof=1))
        if std == 0.0:
            raise InputError("rewards cannot be scaled: all are equal; set normalize_reward to false")
        return lambda reward: (reward - mean) / std


@dataclass(frozen=True)
class BestEpisodes(Rewards):
    """For %BC: keeps the episodes with the highest discounted returns, best first, with their rewards unchanged.

    Even a `frac` of 1 sorts the episodes this way and drops an unfinished last one, as CORL does.

    Attributes:
        frac: Share of the episodes to keep, rounded down, but at least one.
        discount: The discount of the returns that rank the episodes, which are summed in float64.
    """

    frac: float
    discount: float

    def modified(self, dataset: Any, env: str, episodes: Episodes | None = None) -> Any:
        """As for `Rewards`.

        Raises:
            InputError: No episode or piece is complete.
        """
        found = pieces(dataset.terminals) if episodes is None else episodes.slices()
        if not found:
            raise InputError("the best trajectories cannot be kept: the dataset has no complete episode")
        rewards = dataset.rewards.astype(np.float64)
        returns = [rewards[piece] @ self.discount ** np.arange(piece.stop - piece.start) for piece in found]
        best = np.argsort(returns)[::-1][: max(1, int(self.frac * len(found)))]
        rows = np.concatenate([np.arange(found[index].start, found[index].stop) for index in best])
        return Batch(*(column.take(rows, axis=0) for column in dataset))


def _is_scaled(env: str, episodes: Episodes | None) -> bool:
    """Whether to scale returns to a range of 1000: locomotion as in CORL, and your own data if its returns differ."""
    if is_locomotion(env):
        return True
    of_ogbench = env.startswith((OGBENCH, OGBENCH_ENVS))
    return episodes is not None and not of_ogbench and len(set(episodes.returns.tolist())) > 1


def _difference(low: float, high: float) -> float:
    """The range of the returns.

    Raises:
        InputError: It is 0.
    """
    if low == high:
        raise InputError("rewards cannot be scaled: all returns are equal; set normalize_reward to false")
    return high - low
