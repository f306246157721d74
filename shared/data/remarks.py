"""Remarks on suspicious ends of a dataset's episodes, and a repair of one such fault."""

from collections.abc import Iterator

import numpy as np

from shared.data.episodes import of_rows
from shared.data.transitions import ended_by_time
from shared.errors import InputError

_FEW = 3  # this many episodes of equal length are no coincidence
_SAMPLE = 10_000  # rows between which distances are computed


def time_limits(raw: dict[str, np.ndarray], max_episode_steps: int | None = None) -> np.ndarray:
    """Marks terminal rows (N,) that look like time limits, because they end episodes of the maximal length.

    They do if all terminals come after the same number of steps. It is also enough that a tenth of them come after the
    maximal length, or that this is the environment's time limit.

    Args:
        raw: The arrays of a dataset.
        max_episode_steps: The environment's time limit in steps; None if it has none, or if it is unknown.
    """
    nothing = np.zeros(len(raw["rewards"]), bool)
    terminals = raw["terminals"].astype(bool)
    if "trajectory_ends" in raw or _timeouts(raw).any():
        return nothing
    ends = np.flatnonzero(terminals)
    lengths = np.diff(ends, prepend=-1)
    if not len(ends) or (longest := int(lengths.max())) == 1 or _in_a_row(terminals):
        return nothing
    last = ends[lengths == longest]
    # At a time limit, episode lengths pile up; otherwise, the longest episodes are rarer than slightly shorter ones.
    piled = len(last) >= max(_FEW, 0.1 * len(ends), 3 * (lengths == longest - 1).sum())
    alike = piled or (len(last) == len(ends) > 1)
    if not (alike or longest == max_episode_steps):
        return nothing
    nothing[last] = True
    return nothing


def _timeouts(raw: dict[str, np.ndarray]) -> np.ndarray:
    """Rows (N,) that the file marks as ended by a time limit, except for terminals."""
    return raw.get("timeouts", np.zeros(len(raw["rewards"]), bool)).astype(bool) & ~raw["terminals"].astype(bool)


def with_time_limits(
    raw: dict[str, np.ndarray], limits_as_terminals: bool, max_episode_steps: int | None
) -> dict[str, np.ndarray]:
    """Turns terminals that look like time limits into timeouts, unless `limits_as_terminals` keeps them.

    Raises:
        InputError: No terminal looks like a time limit, so the setting has no effect.
    """
    if limits_as_terminals:
        return raw
    found = time_limits(raw, max_episode_steps)
    if not found.any():
        raise InputError("no terminal of the dataset looks like a time limit: leave limits_as_terminals out")
    terminals = raw["terminals"].astype(bool)
    return {**raw, "terminals": terminals & ~found, "timeouts": found}


def on_dataset(raw: dict[str, np.ndarray], max_episode_steps: int | None) -> Iterator[str]:
    """Yields a line for everything suspicious about a dataset: ends of episodes, and columns without information.

    Args:
        raw: The arrays of a dataset.
        max_episode_steps: As for `on_episodes`.

    Raises:
        InputError: As for `on_episodes`.
    """
    yield from on_episodes(raw, max_episode_steps)
    for name in ("observations", "actions"):
        values = raw[name]
        if values.ndim == 2 and len(still := np.flatnonzero(values.min(axis=0) == values.max(axis=0))):
            which = "component " + str(still[0]) if len(still) == 1 else f"{len(still)} components, {still[0]} first,"
            yield f"{which} of the {name} never changes" if len(still) == 1 else f"{which} of the {name} never change"
    if (raw["rewards"] == raw["rewards"][0]).all():
        yield f"every reward is {raw['rewards'][0]:g}: returns say nothing but how long an episode is"


def on_episodes(raw: dict[str, np.ndarray], max_episode_steps: int | None) -> Iterator[str]:
    """Yields a line for everything suspicious about the ends of episodes.

    Args:
        raw: The arrays of a dataset.
        max_episode_steps: Time limit in steps; it only cuts episodes if there are no `timeouts`.

    Raises:
        InputError: Neither timeouts nor a time limit say where episodes end.
    """
    if (odd := ~np.isin(raw["terminals"], (0, 1))).any():
        yield f"{odd.sum():,} of the terminals are neither 0 nor 1, and end an episode as 1 does"
    limits = time_limits(raw, max_episode_steps)
    if limits.any():
        yield _on_limits(raw, limits)
    if inside := _inside(raw, max_episode_steps):
        yield inside
    episodes = of_rows(raw, max_episode_steps)
    rows, size = len(raw["rewards"]), episodes.size
    if not size:
        yield (
            "no terminal and no time limit ends an episode: what needs whole episodes cannot use the dataset; mark "
            "their last rows in 'timeouts'"
        )
    elif size < rows:
        yield (
            f"the last {rows - size:,} rows end in no terminal and no time limit: an episode was cut there, and it is "
            "left out of returns and of whole trajectories"
        )


def _on_limits(raw: dict[str, np.ndarray], limits: np.ndarray) -> str:
    number, ends = int(limits.sum()), np.flatnonzero(raw["terminals"])
    steps = int(np.diff(ends, prepend=-1).max())
    which = f"all {number:,}" if number == len(ends) else f"{number:,} of {len(ends):,}"
    return (
        f"{which} terminals come after exactly {steps:,} steps, as time limits do, but a terminal says that nothing "
        "follows: if they are limits, train with --limits_as_terminals false"
    )


def _inside(raw: dict[str, np.ndarray], max_episode_steps: int | None) -> str:
    """A line on terminals inside episodes; empty if there are none, or if the data cannot show it."""
    if "trajectory_ends" in raw:
        return ""
    terminals = raw["terminals"].astype(bool)
    if in_a_row := _in_a_row(terminals):
        return (
            f"{in_a_row:,} of {terminals.sum():,} terminals follow another one directly, as where a reached goal is "
            "marked step by step: each ends an episode of a single row; keep the last one of each episode"
        )
    ends = np.flatnonzero(terminals & ~ended_by_time(raw, max_episode_steps))
    ends = ends[ends < len(terminals) - 1]
    if raw["observations"].ndim != 2 or len(ends) < _FEW or "next_observations" in raw:
        return ""
    gone_on = _goes_on(raw, ends, max_episode_steps)
    if gone_on < 0.9 * len(ends):
        return ""
    return (
        f"behind {gone_on:,} of {len(ends):,} terminals the states go on as within an episode, so these terminals seem "
        "to lie inside episodes: each ends one here; unmark them if their episodes went on"
    )


def _in_a_row(terminals: np.ndarray) -> int:
    """The number of terminals that directly follow another one, if too many for episodes of a single row; else 0."""
    number = int((terminals[1:] & terminals[:-1]).sum())
    return number if number >= max(_FEW, 0.1 * terminals.sum()) else 0


def _goes_on(raw: dict[str, np.ndarray], ends: np.ndarray, max_episode_steps: int | None) -> int:
    """The number of rows `ends` after which the next state is as near as within an episode.

    It is 0 if states of the same episode are hardly nearer to each other than to others, because distances then show
    nothing.
    """
    states = raw["observations"]
    size = len(states)
    within = ~raw["terminals"].astype(bool) & ~ended_by_time(raw, max_episode_steps)
    rows = np.flatnonzero(within[:-1])
    rows = rows[:: max(1, len(rows) // _SAMPLE)]
    if not len(rows):
        return 0
    deviation = states[rows].std(axis=0) + 1e-6

    def distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.linalg.norm((states[first] - states[second]) / deviation, axis=1)

    ordinary = float(np.quantile(distances(rows, rows + 1), 0.95))
    elsewhere = float(np.median(distances(rows, (rows + size // 2) % size)))
    if ordinary >= 0.5 * elsewhere:
        return 0
    return int((distances(ends, ends + 1) <= ordinary).sum())
