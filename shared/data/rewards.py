"""What CORL does with rewards before it learns: scales them, or ranks trajectories by them and keeps the best.

Both need trajectories, which the extraction of transitions leaves no mark of. CORL cuts pieces, and so do we for D4RL's
names and the bundled robots' sets. Of every other dataset the `episodes` are given, as its file marks them.
"""

from collections.abc import Callable
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
    """Least and greatest return of the episodes of transitions, by default of the `pieces` that they fall into.

    Args:
        rewards: (N,).
        terminals: (N,).
        max_length: Of a piece, in transitions.
        episodes: Those of the transitions; None: CORL's pieces count.

    Returns:
        The least and the greatest return, added up in float64.

    Raises:
        InputError: No episode or piece is complete.
    """
    found = pieces(terminals, max_length) if episodes is None else episodes.slices()
    returns = [float(np.cumsum(rewards[piece], dtype=np.float64)[-1]) for piece in found]
    if not returns:
        raise InputError("rewards cannot be scaled: the dataset has no complete episode; set normalize_reward to false")
    return min(returns), max(returns)


def keep_best(dataset: Batch, frac: float, discount: float, episodes: Episodes | None = None) -> Batch:
    """The transitions of the episodes with the highest discounted returns, the best first.

    Also with a `frac` of 1 they are ordered so, and an open last episode is lost, as in CORL.

    Args:
        dataset: The transitions as extracted.
        frac: Share of the episodes to keep, rounded down, but one at least.
        discount: Of the returns that rank the episodes, which are added up in float64.
        episodes: Those of the transitions; None: CORL's `pieces` count.

    Raises:
        InputError: No episode or piece is complete.
    """
    found = pieces(dataset.terminals) if episodes is None else episodes.slices()
    if not found:
        raise InputError("the best trajectories cannot be kept: the dataset has no complete episode")
    rewards = dataset.rewards.astype(np.float64)
    returns = [rewards[piece] @ discount ** np.arange(piece.stop - piece.start) for piece in found]
    best = np.argsort(returns)[::-1][: max(1, int(frac * len(found)))]
    rows = np.concatenate([np.arange(found[index].start, found[index].stop) for index in best])
    return Batch(*(column.take(rows, axis=0) for column in dataset))


def scale_rewards(dataset: Any, env: str, episodes: Episodes | None = None) -> Any:
    """Scales the rewards of a dataset so that the range of returns is 1000.

    Where CORL's pieces count, those of locomotion alone are scaled, as in CORL, and others stay as they are.

    Args:
        dataset: The transitions as extracted.
        env: The dataset or environment; `shared.envs.families` knows the families.
        episodes: Those of the transitions; None: CORL's `pieces` count.

    Raises:
        InputError: The returns have no range.
    """
    if not _is_scaled(env, episodes):
        return dataset
    rewards = dataset.rewards / _spread(dataset, episodes)
    rewards *= 1000
    return dataset._replace(rewards=rewards)


def _is_scaled(env: str, episodes: Episodes | None) -> bool:
    """Whether returns are brought to a range of 1000: in CORL those of locomotion, of other data where they differ."""
    if is_locomotion(env):
        return True
    of_ogbench = env.startswith((OGBENCH, OGBENCH_ENVS))
    return episodes is not None and not of_ogbench and len(set(episodes.returns.tolist())) > 1


def scale_and_shift_rewards(
    dataset: Any, env: str, episodes: Episodes | None = None, *, factor: float, shift: float
) -> Any:
    """The rule of CQL and Cal-QL: rewards as `scale_rewards` has them; then, for every dataset, a factor and a shift.

    Raises:
        InputError: The returns have no range.
    """
    scaled = scale_rewards(dataset, env, episodes)
    return scaled._replace(rewards=scaled.rewards * factor + shift)


def scale_and_shift_step_rewards(
    dataset: Any, env: str, episodes: Episodes | None = None, *, factor: float, shift: float
) -> Callable[[float], float]:
    """What `scale_and_shift_rewards` does to a dataset, for the reward of one step, in double precision.

    Raises:
        InputError: The returns have no range.
    """
    if not _is_scaled(env, episodes):
        return lambda reward: reward * factor + shift
    spread = _spread(dataset, episodes)
    return lambda reward: reward / spread * 1000 * factor + shift


def _spread(dataset: Any, episodes: Episodes | None) -> float:
    """By how much the greatest return exceeds the least.

    Raises:
        InputError: By nothing.
    """
    return _difference(*return_range(dataset.rewards, dataset.terminals, episodes=episodes))


def _difference(low: float, high: float) -> float:
    """By how much the greatest return exceeds the least.

    Raises:
        InputError: By nothing.
    """
    if low == high:
        raise InputError("rewards cannot be scaled: all returns are equal; set normalize_reward to false")
    return high - low


def modify_rewards(dataset: Any, env: str, episodes: Episodes | None = None) -> Any:
    """The rule of TD3+BC, IQL and AWAC: 1 taken off antmaze rewards, others as `scale_rewards` has it."""
    if is_antmaze(env):
        return dataset._replace(rewards=dataset.rewards - 1)
    return scale_rewards(dataset, env, episodes)


def modify_rewards_of_episodes(dataset: Batch, env: str, episodes: Episodes | None = None) -> Batch:
    """The rule of XQL: as `modify_rewards`, but by the returns of true episodes, an open last one included.

    Where none are given, an episode ends at a terminal, and where the next transition does not begin in the state that
    was reached. Those returns are added up in float32, row by row.

    Raises:
        InputError: The returns have no range.
    """
    if episodes is not None or is_antmaze(env) or not is_locomotion(env):
        return modify_rewards(dataset, env, episodes)
    jumps = np.linalg.norm(dataset.observations[1:] - dataset.next_observations[:-1], axis=1) > 1e-6
    starts = 1 + np.flatnonzero(jumps | (dataset.terminals[:-1] == 1.0))
    returns = [np.cumsum(episode)[-1] for episode in np.split(dataset.rewards, starts)]
    rewards = dataset.rewards / _difference(min(returns), max(returns))
    rewards *= 1000
    return dataset._replace(rewards=rewards)


def modify_step_rewards(dataset: Any, env: str, episodes: Episodes | None = None) -> Callable[[float], float]:
    """What `modify_rewards` does to a dataset, for the reward of one step in the environment, in double precision.

    Args:
        dataset: The transitions as extracted, whose returns decide the scale once and for all.
        env: As `modify_rewards`.
        episodes: As `modify_rewards`.

    Raises:
        InputError: The returns have no range.
    """
    if is_antmaze(env):
        return lambda reward: reward - 1
    if not _is_scaled(env, episodes):
        return lambda reward: reward
    spread = _spread(dataset, episodes)
    return lambda reward: reward / spread * 1000


def modify_rewards_times_100(dataset: Any, env: str, episodes: Episodes | None = None) -> Any:
    """ReBRAC's rule: antmaze rewards times 100, not shifted.

    Raises:
        InputError: It is no antmaze dataset.
    """
    if not is_antmaze(env):
        raise InputError("rewards are scaled for AntMaze alone: set normalize_reward to false")
    return dataset._replace(rewards=100.0 * dataset.rewards)


def modify_step_rewards_times_100(dataset: Any, env: str, episodes: Episodes | None = None) -> Callable[[float], float]:
    """What `modify_rewards_times_100` does to a dataset, for the reward of one step in the environment.

    Raises:
        InputError: As `modify_rewards_times_100`.
    """
    modify_rewards_times_100(dataset, env)
    return lambda reward: 100.0 * reward


def shift_antmaze_rewards(dataset: Batch, env: str, episodes: Episodes | None = None) -> Batch:
    """FQL's rule: 1 taken off antmaze rewards, others unchanged, those of locomotion too."""
    return dataset._replace(rewards=dataset.rewards - 1) if is_antmaze(env) else dataset


def shift_antmaze_step_rewards(dataset: Batch, env: str, episodes: Episodes | None = None) -> Callable[[float], float]:
    """What `shift_antmaze_rewards` does to a dataset, for the reward of one step in the environment."""
    return (lambda reward: reward - 1) if is_antmaze(env) else lambda reward: reward
