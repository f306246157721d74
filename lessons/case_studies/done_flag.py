"""An inverted done flag."""

from collections.abc import Callable

import numpy as np

from lessons.measured import Figure
from shared import names
from shared.data import transitions
from shared.data.transitions import Batch

Flag = Callable[[Batch], np.ndarray]
DISCOUNT = 0.99


def wrong(dataset: Batch) -> np.ndarray:
    # "Where the next row is not my next state, an episode has ended."
    jumps = (dataset.next_observations[:-1] != dataset.observations[1:]).any(axis=-1)
    return np.append(jumps, True).astype(np.float32)


def right(dataset: Batch) -> np.ndarray:
    return dataset.terminals


def check(flag: Flag) -> None:
    raw = _episodes()
    done = flag(transitions.extract_transitions(raw))
    rows = np.flatnonzero(~raw["timeouts"][:-1])  # the rows that became transitions
    np.testing.assert_array_equal(done == 1.0, raw["terminals"][rows], "done is not where the terminals are")


def _episodes() -> dict[str, np.ndarray]:
    """Twenty episodes of five rows in D4RL's layout: one falls, the next is cut by its time limit, and so on."""
    last = np.arange(100) % 5 == 4
    falls = np.arange(100) // 5 % 2 == 0
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(100, 3)).astype(np.float32),
        "actions": np.zeros((100, 1), np.float32),
        "rewards": np.ones(100, np.float32),
        "terminals": last & falls,
        "timeouts": last & ~falls,
    }


def _values_of_falls(dataset: Batch, done: np.ndarray) -> np.ndarray:
    """What one-step bootstrapping gives the steps into a fall, (falls,), where each row has a value of its own.

    The state after a fall is in the file the first of the next episode, which is the next row.
    """
    values, following = np.zeros(len(done)), 0.0
    for row in reversed(range(len(done))):
        following = values[row] = dataset.rewards[row] + DISCOUNT * (1.0 - done[row]) * following
    return values[dataset.terminals == 1.0]


def measure() -> list[Figure]:
    raw = transitions.read_hdf5(names.dataset_path("mini/hopper-medium-expert"))
    dataset = transitions.extract_transitions(raw)
    flags = [flag(dataset) for flag in (wrong, right)]
    falls = dataset.terminals == 1.0
    # The row before a time limit's has that row, which was dropped, as its next state.
    limits = np.append(np.diff(np.flatnonzero(~transitions.ended_by_time(raw, None)[:-1])) > 1, False)
    return [
        Figure(f"of {falls.sum()} falls, flagged", *(float(done[falls].sum()) for done in flags)),
        Figure(f"of {limits.sum()} time limits, flagged", *(float(done[limits].sum()) for done in flags)),
        Figure("mean value of a step into a fall", *(float(_values_of_falls(dataset, done).mean()) for done in flags)),
    ]
