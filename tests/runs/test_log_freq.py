"""Metrics that are logged between evaluations, in both frameworks."""

from pathlib import Path

import numpy as np
import pytest

from tests.runs.stopped_runs import assert_same_state, rows, train


@pytest.mark.thorough
@pytest.mark.usefixtures("in_haste")
@pytest.mark.parametrize("side", ["torch", "jax"])
def test_metrics_are_logged_when_asked(side: str, tmp_path: Path) -> None:
    """Each row has the means since the previous one, and the weights are those of a run without such rows."""
    settings = {"eval_freq": 7, "max_timesteps": 14, "n_episodes": 1}
    plain, each, third = (train(side, "td3_bc", tmp_path, log_freq=freq, **settings) for freq in (None, 1, 3))
    logged = {row["step"]: row for row in rows(each) if "critic_loss" in row}
    assert list(logged) == [*range(1, 15)]
    assert [step for step in logged if "actor_loss" in logged[step]] == [*range(2, 15, 2)]
    steps = [3, 6, 7, 9, 12, 14]
    found = [row for row in rows(third) if "critic_loss" in row]
    assert [row["step"] for row in found] == steps
    for row, start in zip(found, [0, *steps], strict=False):
        for name in ("critic_loss", "actor_loss"):
            values = [logged[step][name] for step in range(start + 1, row["step"] + 1) if name in logged[step]]
            assert values == [] if name not in row else row[name] == pytest.approx(np.mean(values), rel=1e-6)
    assert [row for row in rows(third) if "returns" in row] == [row for row in rows(plain) if "returns" in row]
    for run in (each, third):
        assert [row["step"] for row in rows(run)] == sorted(row["step"] for row in rows(run))
        assert_same_state(plain, run)
