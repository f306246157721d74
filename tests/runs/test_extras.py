"""Extras that never end a run: its picture, Weights & Biases, and a file's facts about the data's policies."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import h5py
import matplotlib.image
import numpy as np
import pytest

from shared.runs.curves import Curve, draw_curve, drawable
from shared.runs.extras import policy_returns
from shared.runs.task import load_task
from shared.runs.wandb_side import WandbLogger
from tests.runs.test_runs import Config, FakeWandb, config, rows, run_to_the_end

__all__ = ["config"]  # a fixture

NAMES = ("a$\\frac$", "$x^$", "\\$\\frac$", "two\nlines", "a\udcffb", "$", "%s {} _", "n" * 10_000, "\u597d")


def test_a_hostile_name_and_hostile_attributes_cost_nothing(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The picture is drawn with the valid parts, and one line reports the rest."""
    path = Path(config.env).rename(tmp_path / "a$\\frac$.hdf5")
    with h5py.File(path, "a") as file:
        file.attrs.update({"expert_return_mean": "high", "$\\frac$_return_mean": 100.0, "other_return_mean": np.nan})
    config = dataclasses.replace(config, env=str(path))
    run = run_to_the_end(config, load_task(config))
    (line,) = capsys.readouterr().err.splitlines()
    assert "are no numbers: 'expert_return_mean' is 'high', 'other_return_mean' is nan" in line
    assert set(run.result["data_policies"]) == {"medium", "$\\frac$"}
    assert json.loads((run.folder / "result.json").read_text()) == run.result
    assert matplotlib.image.imread(run.folder / "learning_curve.png").shape[2] == 4


@pytest.mark.parametrize("error", [ValueError("no\nsuch glyph"), OSError(28, "No space left"), MemoryError()])
def test_a_picture_that_fails_is_told_once(
    error: Exception, config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although it is tried at each evaluation and at the end."""

    def fail(*_: Any) -> bytes:
        raise error

    monkeypatch.setattr("shared.runs.record.draw_curve", fail)
    monkeypatch.setattr("shared.runs.record._SECONDS_BETWEEN_DRAWINGS", 0.0)
    run = run_to_the_end(config, load_task(config))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cannot draw ")
    assert line.endswith("; the run goes on without")
    assert (run.folder / "result.json").exists()


class Failing(FakeWandb):
    """Starts, and then always fails."""

    def log(self, row: dict[str, Any], step: int) -> None:
        """Fails as if its service had died."""
        raise ConnectionError("the service has died")

    def finish(self, exit_code: int) -> None:
        """Fails with the library's own error."""
        raise self.Error("nobody listens")


def test_weights_and_biases_that_fail_are_told_once(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shared.runs.loggers.wandb_logger", lambda config: WandbLogger(Failing(), config))
    run = run_to_the_end(config, load_task(config))
    expected = "Weights & Biases has failed (the service has died); the run goes on without"
    assert capsys.readouterr().err.splitlines() == [expected]
    assert len(rows(run)) == 8
    assert (run.folder / "result.json").exists()


def test_weights_and_biases_may_fail_in_any_way_to_start(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is a one-line error before the run starts."""

    class Broken(FakeWandb):
        def init(self, **settings: Any) -> FakeWandb:
            raise OSError("no room\nfor its files")

    monkeypatch.setattr("shared.runs.loggers.wandb_logger", lambda config: WandbLogger(Broken(), config))
    with pytest.raises(ValueError, match=r"cannot start \(no room for its files\): set wandb_mode to offline or off"):
        run_to_the_end(config, load_task(config))
    assert list(Path(config.runs_path).iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_drawn_as_it_stands(name: str) -> None:
    """In a title and in the legend, without any warning."""
    with warnings.catch_warnings(record=True) as told:
        draw_curve(Curve("return_mean", np.array([1, 2]), np.zeros((2, 3)), {name: 1.0}), name)
    assert not told
    assert len(drawable(name)) < 100


@pytest.mark.parametrize("value", [0.0, 4.5e16, -1e100])
@pytest.mark.parametrize("steps", [[1], [0, 10**15]])
def test_any_return_is_drawn(value: float, steps: list[int]) -> None:
    draw_curve(Curve("return_mean", np.array(steps), np.full((len(steps), 2), value), {"own": value}), "")


@pytest.mark.parametrize(
    ("value", "kept"), [(3, 3.0), (2.5, 2.5), ("2.5", 2.5), ("high", None), (np.inf, None), (1e200, None)]
)
def test_returns_are_finite_numbers(value: Any, kept: float | None, capsys: pytest.CaptureFixture[str]) -> None:
    found = policy_returns({"expert_return_mean": value, "env_id": "d4rl/hopper-v2", "return_mean": "other"})
    assert found == ({} if kept is None else {"expert": kept})
    assert (capsys.readouterr().err != "") == (kept is None)


def test_a_name_that_cannot_be_printed_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert policy_returns({"a\udcff\n_return_mean": 1.0}) == {}
    assert "'a\\udcff\\n_return_mean' is 1.0" in capsys.readouterr().err
