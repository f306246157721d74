"""A run whose loss or evaluation is NaN or infinite: how it ends or continues, and what is reported."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corl_torch import td3_bc
from shared.commands.common import ended
from shared.commands.plot import main as plot
from shared.commands.reporting import tables
from shared.commands.reporting.evaluations import read_run
from shared.commands.reporting.runs import gather
from shared.envs.evaluation import Evaluator
from shared.errors import RunError, Stopped
from shared.runs.seeds import summary
from tests.runs.stopped_runs import only_run, train
from tests.runs.test_resume import SIDES, stop_after

pytestmark = pytest.mark.usefixtures("in_haste")


@contextmanager
def lost_in_evaluation(number: int, value: float = np.nan) -> Iterator[None]:
    """Makes the evaluation with this number, from 1, return `value` in its last episode."""
    play, count = Evaluator._play, 0

    def broken(self: Evaluator, policy: Any) -> Any:
        nonlocal count
        count += 1
        found = play(self, policy)
        if count == number:
            found.returns[-1] = value
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "_play", broken)
        yield


def read_strictly(text: str) -> Any:
    """Parses JSON strictly, as in its standard."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.mark.thorough
@pytest.mark.parametrize("side", SIDES)
def test_an_evaluation_that_is_not_finite_ends_the_run(side: str, tmp_path: Path) -> None:
    """After the row that says so; the checkpoint with those weights exists."""
    with (
        lost_in_evaluation(2),
        pytest.raises(RunError, match=r"an evaluation's outcome is nan at update 8; last checkpoint: .*step_8"),
    ):
        train(side, "td3_bc", tmp_path)
    run = only_run(tmp_path)
    last = read_strictly((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["diverged"]) == (8, "an evaluation's outcome is nan")
    assert last["returns"][0] is not None
    assert last["returns"][1] is last["return_mean"] is last["d4rl_normalized_score"] is None
    assert not (run / "result.json").exists()
    found = read_run(run)
    assert found.diverged == "an evaluation's outcome is nan at 8"
    assert np.isnan(found.values[8])


def test_it_continues_if_it_shall(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its result is valid JSON and states what was lost. The curve is drawn, no table counts the run, plot names it."""
    with lost_in_evaluation(2):
        run = train("jax", "td3_bc", tmp_path / "runs", on_nan="continue")
    said = capsys.readouterr()
    assert said.err.count("the run continues, as on_nan asks") == 1
    assert "diverged: an evaluation's outcome is nan at update 8" in said.out
    result = read_strictly((run / "result.json").read_text())
    assert result["diverged"] == {"step": 8, "what": "an evaluation's outcome is nan"}
    assert result["final"] is not None
    assert result["mean_of_last_3"] is None
    assert result["best"] >= result["final"]
    assert "no score" in summary([result, result])
    assert (run / "learning_curve.png").exists()
    gathered = gather([run])
    assert not gathered.groups
    assert tables.scores(gathered).rows[0][1] == "diverged (1)"
    output = tmp_path / "curves.png"
    assert ended(plot, [str(run), "--output", str(output)]) == 0
    assert "diverged: an evaluation's outcome is nan at 8" in capsys.readouterr().err
    assert output.exists()


def test_a_state_that_is_lost_is_not_saved_and_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last whole checkpoint remains the last one."""
    update = td3_bc.TD3_BC.update

    def broken(self: Any, batch: Any, noise: Any) -> Any:
        metrics = update(self, batch, noise)
        if self.total_it == 8:
            self.critic_1.net[0].weight.data[0, 0] = np.nan
        return metrics

    monkeypatch.setattr(td3_bc.TD3_BC, "update", broken)
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes that it received NaN
    run = train("torch", "td3_bc", tmp_path / "runs", on_nan="continue")
    assert "critic_1.net.0.weight is not finite at update 8; the run continues" in capsys.readouterr().err
    assert [path.stem for path in (run / "checkpoints").iterdir()] == ["step_4"]
    assert read_strictly((run / "result.json").read_text())["diverged"]["step"] == 8
    rows = [read_strictly(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["critic_loss"] for row in rows if row["step"] == 12 and "critic_loss" in row] == [None]


def test_a_resumed_run_knows_what_was_lost(tmp_path: Path) -> None:
    with lost_in_evaluation(1), stop_after(8), pytest.raises(Stopped):
        train("torch", "td3_bc", tmp_path, on_nan="continue")
    run = train("torch", "td3_bc", tmp_path, on_nan="continue", resume="auto")
    assert run == only_run(tmp_path)
    assert read_strictly((run / "result.json").read_text())["diverged"]["step"] == 4


def test_a_run_that_has_ended_so_can_be_continued(tmp_path: Path) -> None:
    """From the previous checkpoint, with the evaluation repeated."""
    with lost_in_evaluation(2), pytest.raises(RunError):
        train("torch", "td3_bc", tmp_path)
    run = train("torch", "td3_bc", tmp_path, on_nan="continue", resume="auto")
    assert run == only_run(tmp_path)
    assert read_strictly((run / "result.json").read_text())["diverged"] is None
