"""A run's memory does not grow with its updates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.runs.run import Run
from tests.runs.stopped_runs import train

pytestmark = pytest.mark.thorough

UPDATES, INTERVAL = 50_000, 1_000
# Of the process, over the last 40 intervals: the learning curve, drawn every ten seconds, takes a few MB now and then,
# and settles. One train state of 0.8 MB kept at each interval would be 34.
BOUND = 12 * 2**20


def test_memory_stays_flat_over_fifty_thousand_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs, states, histories, curves and checkpoints are let go of."""
    resident, log = [], Run.log

    def measuring(self: Run, step: int, metrics: Mapping[str, Any]) -> None:
        log(self, step, metrics)
        resident.append(psutil.Process().memory_info().rss)

    monkeypatch.setattr(Run, "log", measuring)
    train("jax", "any_percent_bc", tmp_path, max_timesteps=UPDATES, eval_freq=INTERVAL, n_episodes=1)
    assert len(resident) == UPDATES // INTERVAL
    assert resident[-1] - resident[9] < BOUND, resident
