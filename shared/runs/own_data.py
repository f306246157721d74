"""Warnings and defaults for data without published results."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from shared.data import remarks
from shared.data.cache import Source
from shared.data.episodes import Episodes
from shared.data.rewards import return_range
from shared.errors import InputError
from shared.names import has_published_results
from shared.runs.progress import say, warn


class Prompts(NamedTuple):
    """The target returns that a sequence model is prompted with, and the factor that scales them."""

    target_returns: tuple[float, ...]
    reward_scale: float


NO_PROMPTS = Prompts((), 1.0)
"""The value for algorithms that are not prompted with a return."""

_CORLS = Prompts((12000.0, 6000.0), 0.001)


def looked_through(name: str, read: Source, limit: int | None, limits_as_terminals: bool) -> Source:
    """Warns of everything suspicious about the ends of a dataset's episodes; may turn terminals into time limits.

    Args:
        name: The dataset's name; datasets with published results are returned unchanged.
        read: The dataset.
        limit: Time limit in steps, or None if it is unknown.
        limits_as_terminals: Whether terminals that look like time limits stay terminals.

    Raises:
        InputError: `limits_as_terminals` does not apply to this dataset, or nothing says where episodes end.
    """
    if has_published_results(name):
        if not limits_as_terminals:
            raise InputError(f"the terminals of {name} are known to be ones: leave limits_as_terminals out")
        return read
    raw = remarks.with_time_limits(read.raw, limits_as_terminals, limit)
    for line in remarks.on_episodes(raw, limit):
        warn(f"note: {line}")
    return read._replace(raw=raw)


def tell_of_preparation(before: Any, after: Any, episodes: Episodes) -> None:
    """Prints how preparation changed a user's own data: how many transitions it kept, or how it changed returns.

    Args:
        before: The transitions as extracted.
        after: The transitions to learn from.
        episodes: The episodes of `before`.
    """
    if len(after.rewards) < len(before.rewards):
        say(f"{len(after.rewards):,} of {len(before.rewards):,} transitions are kept, from the best episodes")
    elif episodes.size and not np.array_equal(np.sort(before.rewards), np.sort(after.rewards)):
        then, now = (return_range(dataset.rewards, dataset.terminals, episodes=episodes) for dataset in (before, after))
        say(
            f"rewards are modified: {len(episodes.starts):,} episodes return {then[0]:g} to {then[1]:g}, and then "
            f"{now[0]:g} to {now[1]:g}"
        )


def prompts(
    env: str, target_returns: tuple[float, ...] | None, reward_scale: float | None, returns: np.ndarray
) -> Prompts:
    """Chooses a sequence model's prompts, and prints those that are taken from the data.

    Args:
        env: The dataset.
        target_returns: The target returns; None means CORL's for D4RL's names, else the best return and the midrange.
        reward_scale: The factor on returns; None means CORL's for D4RL's names, else one that scales the largest to 1.
        returns: The returns of the data's trajectories, (E,).
    """
    own = _CORLS
    if not has_published_results(env):
        best, worst = float(returns.max()), float(returns.min())
        largest = max(abs(best), abs(worst))
        # Six digits, because prompts are part of the names of metrics
        asking = [float(f"{prompt:.6g}") for prompt in (best, (best + worst) / 2)]
        own = Prompts(tuple(dict.fromkeys(asking)), 1 / largest if largest else 1.0)
    found = Prompts(
        own.target_returns if target_returns is None else target_returns,
        own.reward_scale if reward_scale is None else reward_scale,
    )
    if own is not _CORLS and None in (target_returns, reward_scale):
        say(
            f"target_returns of {env}: {', '.join(f'{prompt:g}' for prompt in found.target_returns)}, "
            f"reward_scale {found.reward_scale:g}; its {len(returns):,} episodes return {worst:g} to {best:g}"
        )
    return found


def with_corls_prompts(config: Any) -> Any:
    """Replaces missing prompts with CORL's, as checkpoints from CORL need; other configs stay unchanged."""
    missing = [name for name in Prompts._fields if getattr(config, name, 0) is None]
    return dataclasses.replace(config, **{name: getattr(_CORLS, name) for name in missing})
