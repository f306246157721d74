"""Whole runs in environments with boxes other than -1 to 1, which raise an error for any action outside."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.envs.boxes import ActionUnits
from shared.errors import Stopped
from shared.frameworks.saved_run import SavedRun
from shared.runs import online, task
from shared.runs.run import Run
from tests.boxed_envs import BOXES, write
from tests.runs.stopped_runs import assert_same_bits, last_checkpoint, only_run, rows, train

pytestmark = pytest.mark.usefixtures("in_haste")


def settings(name: str, folder: Path, box: str) -> dict[str, Any]:
    """The dataset of a run, and the environment that scores it."""
    if name in ("sac", "online/td3"):
        return {"env": f"boxed/{box}-v0"}
    own = {"env": str(write(folder, box))}
    return own | ({"episode_len": 8} if name == "dt" else {})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "side"),
    [("rebrac", "torch"), ("dt", "torch"), ("finetune/spot", "torch"), ("online/td3", "torch"), ("sac", "jax")],
)
def test_twice_the_box_is_the_same_run(name: str, side: str, tmp_path: Path) -> None:
    """Losses, metrics and returns are bitwise equal, since doubling is exact. So every unit of action is the box's.

    There is one for each way in which a run gets actions: with their successors, in trajectories, and from the
    environment, after a dataset or without one. Every algorithm learns from what `load_task` or the experience gives.
    """
    runs = {box: train(side, name, tmp_path / box, **settings(name, tmp_path, box)) for box in ("Unit", "Twice")}
    unit, twice = (rows(run) for run in runs.values())
    assert any("return_mean" in row for row in unit)
    assert unit == twice
    saved = SavedRun.open(last_checkpoint(runs["Twice"]))
    assert saved.units.std.tolist() == [2, 2]
    assert saved.box is not None
    assert saved.box.high.tolist() == BOXES["Twice"][1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "side"), [("td3_bc", "torch"), ("td3_bc", "jax"), ("finetune/iql", "jax"), ("sac", "torch")]
)
def test_no_action_leaves_an_uneven_box(name: str, side: str, tmp_path: Path) -> None:
    """On data, in evaluations, in exploration, or when the run is played afterwards."""
    run = train(side, name, tmp_path / "runs", **settings(name, tmp_path, "Uneven"))
    saved = SavedRun.open(last_checkpoint(run))
    np.testing.assert_allclose(saved.units.mean, [0.35, 1.4], rtol=1e-6)
    np.testing.assert_allclose(saved.units.std, [0.35, 1.7], rtol=1e-6)
    evaluator = saved.evaluator(2)
    evaluator(saved.policy())
    for value in (-1.5, 1.5):
        evaluator(lambda observations, value=value: np.full((2, 2), value, np.float32))
    evaluator.close()


def test_without_bounds_the_data_give_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or settings do; if the run has only an environment, they must."""
    run = train("torch", "td3_bc", tmp_path / "data", **settings("td3_bc", tmp_path, "Free"))
    assert capsys.readouterr().out.count("actions have no bounds") == 1
    np.testing.assert_allclose(SavedRun.open(last_checkpoint(run)).units.std, 3.8, atol=0.05)
    own = settings("td3_bc", tmp_path, "Free") | {"action_low": (-6.0,), "action_high": (6.0, 2.0)}
    run = train("torch", "td3_bc", tmp_path / "settings", **own)
    assert "no bounds" not in capsys.readouterr().out
    assert SavedRun.open(last_checkpoint(run)).units.std.tolist() == [6, 4]


@pytest.fixture
def as_before() -> Iterator[pytest.MonkeyPatch]:
    """Makes runs learn from actions as the environment takes them, as they did before the units of a box."""

    def units(config: Any, there: Any, *_: Any, **__: Any) -> ActionUnits:
        return ActionUnits(np.zeros(2, np.float32), np.ones(2, np.float32), there.bound, there.box)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "action_units", units)
        patch.setattr(online, "action_units", units)
        yield patch


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "side"), [("td3_bc", "torch"), ("online/td3", "jax")])
def test_a_run_of_before_goes_on_as_it_began(
    name: str, side: str, tmp_path: Path, as_before: pytest.MonkeyPatch
) -> None:
    """With the bound that its checkpoint states; so does a run that starts with this checkpoint."""
    own = settings(name, tmp_path, "Twice")
    whole = train(side, name, tmp_path / "whole", **own)
    assert SavedRun.open(last_checkpoint(whole)).units.bound == 2
    with as_before.context() as patch:
        patch.setattr(Run, "evaluate", stopping_after(4, Run.evaluate))
        with pytest.raises(Stopped):
            train(side, name, tmp_path / "cut", **own)
    as_before.undo()
    without_the_settings_of_boxes(only_run(tmp_path / "cut") / "config.yaml")
    for named in (False, True):
        again = shutil.copytree(tmp_path / "cut", tmp_path / f"again-{named}")
        resume = str(only_run(again)) if named else "auto"
        assert_same_bits(train(side, name, again, **own, resume=resume), whole)


def without_the_settings_of_boxes(path: Path) -> None:
    """Rewrites settings as an earlier version wrote them."""
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(("action_low", "action_high"))]
    assert len(kept) == len(lines) - 2
    path.write_text("".join(kept))


def stopping_after(step: int, evaluate: Any) -> Any:
    """`Run.evaluate`, changed so that it stops the run after this many updates."""

    def stopped(self: Run, at: int, *arguments: Any, **how: Any) -> None:
        if at >= step:
            raise Stopped("here", 15)
        evaluate(self, at, *arguments, **how)

    return stopped
