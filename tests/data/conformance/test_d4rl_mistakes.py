"""Checks that the conformance suite can fail: without any one rule of the extraction, a corner's arrays differ."""

from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from shared.data import transitions
from tests.data.conformance.conftest import CORNERS, LIMIT, d4rl_environment, differences, write

pytestmark = pytest.mark.d4rl


class Mistake(NamedTuple):
    """A change to `shared/data.py`: a text that occurs there once, and its replacement."""

    name: str
    old: str
    new: str


ROWS = "np.flatnonzero(~timeouts[:-1])"
TERMINALS = 'raw["terminals"][:-1].astype(bool)'
COUNTER = "0 if timeouts[end] else 1"
MISTAKES = [
    Mistake("rows at a time limit are kept", ROWS, "np.arange(len(timeouts) - 1)"),
    Mistake("rows at a terminal are dropped", ROWS, ROWS[:-1] + f" & ~{TERMINALS})"),
    Mistake("a row both terminal and timeout is kept", ROWS, ROWS[:-1] + f" | {TERMINALS})"),
    Mistake("a row ahead of a timeout is dropped in its place", ROWS, ROWS.replace("[:-1]", "[1:]")),
    Mistake(
        "the last row is kept",
        "    timeouts = ended_by_time(raw, max_episode_steps)\n    rows",
        "    raw = {k: np.concatenate([v, v[:1]]) for k, v in raw.items()}\n"
        "    timeouts = ended_by_time(raw, max_episode_steps)\n    rows",
    ),
    Mistake("the next observation is the row's own", "timeouts, rows, rows + 1,", "timeouts, rows, rows,"),
    Mistake(
        "the file's own next observations are used",
        '"timeouts": 1}',
        '"timeouts": 1, "next_observations": 2}',
    ),
    Mistake("timeouts are not read", '    if "timeouts" in raw:', "    if False:"),
    Mistake("rewards stay float64", 'raw["rewards"][rows].astype(np.float32, copy=False)', 'raw["rewards"][rows]'),
    Mistake(
        "observations stay float64",
        "observations.take(rows, axis=0).astype(np.float32, copy=False)",
        "observations.take(rows, axis=0)",
    ),
    Mistake("(N, 1) is not flattened", "        values = values[:, 0]\n", "        pass\n"),
    Mistake("the counter is 0 after a terminal", COUNTER, "0"),
    Mistake("the counter is 1 after a time limit that a terminal meets", COUNTER, "1"),
    Mistake(
        "the counter reaches the limit a row late", "max_episode_steps - 1 - counter", "max_episode_steps - counter"
    ),
]


def with_mistake(mistake: Mistake) -> ModuleType:
    """`shared.data` with the mistake written into its source.

    Raises:
        ValueError: The text to be changed does not occur in the source exactly once.
    """
    source = Path(transitions.__file__).read_text(encoding="utf-8")
    if (count := source.count(mistake.old)) != 1:
        raise ValueError(f"{mistake.name}: its text stands {count} times in {transitions.__file__}")
    module = ModuleType(transitions.__name__)
    module.__file__ = transitions.__file__
    exec(compile(source.replace(mistake.old, mistake.new), mistake.name, "exec"), vars(module))
    return module


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_mistake_is_caught(d4rl: ModuleType, tmp_path: Path, mistake: Mistake) -> None:
    wrong = with_mistake(mistake)
    caught = []
    for corner, raw in CORNERS.items():
        path = write(tmp_path / "corner.hdf5", raw)
        theirs = d4rl.qlearning_dataset(d4rl_environment(d4rl, path))
        if differences(theirs, lambda path=path: wrong.extract_transitions(wrong.read_hdf5(path), LIMIT)):
            caught.append(corner)
    assert caught
