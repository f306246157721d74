"""Runs on OGBench's single tasks in both frameworks, on files made here by its own environments."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.commands import play
from shared.frameworks.twins import load_twin
from shared.runs.configs import dataset_row
from tests import ogbench_files
from tests.runs.stopped_runs import only_run, rows, train

pytestmark = [pytest.mark.usefixtures("in_haste"), ogbench_files.NEEDS_OGBENCH]

POINT, CUBE = "pointmaze-medium-navigate", "cube-single-play"
SMALL: dict[str, dict[str, Any]] = {
    "any_percent_bc": {"frac": 1.0},
    "iql": {},
    "rebrac": {"hidden_dim": 16, "actor_n_hiddens": 1, "critic_n_hiddens": 1, "batch_size": 32},
    "fql": {"actor_hidden_dims": (16,), "critic_hidden_dims": (16,), "flow_steps": 2},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that contains the package's folder with two sets."""
    found = tmp_path_factory.mktemp("home")
    point, cube = ogbench_files.pointmaze(2, 601, seed=0), ogbench_files.cube(1, 241, seed=0)
    for name, made in ((POINT, point), (CUBE, cube)):
        ogbench_files.write(found / ".ogbench" / "data", f"{name}-v0", made, made)
    return found


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes it the home of everything that looks for the user's files."""
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(home))


def run_on(dataset: str, side: str, name: str, folder: Path) -> dict[str, Any]:
    """The result of a short run with the dataset's own row, but smaller networks."""
    env = f"ogbench:{dataset}-singletask-task2-v0"
    row = dataset_row(load_twin(side, name).TrainConfig, name, env)
    train(side, name, folder, **(row | SMALL[name] | {"env": env, "n_episodes": 1, "eval_freq": 4, "max_timesteps": 4}))
    return json.loads((only_run(folder) / "result.json").read_text())


@pytest.mark.thorough
def test_a_maze_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From rows that lead to the task's goal, from one corner to the other, BC learns to reach it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    made = ogbench_files.pointmaze(40, 300, seed=0, task=1)
    ogbench_files.write(tmp_path / ".ogbench" / "data", f"{POINT}-v0", made, made)
    env = f"ogbench:{POINT}-singletask-task1-v0"
    settings = {"frac": 1.0, "max_timesteps": 3000, "eval_freq": 1000, "n_episodes": 10}
    train("jax", "any_percent_bc", tmp_path / "runs", env=env, **settings)
    result = json.loads((only_run(tmp_path / "runs") / "result.json").read_text())
    assert result["best"] >= 80.0


@pytest.mark.thorough
@pytest.mark.parametrize(("side", "name"), [("torch", "iql"), ("jax", "rebrac")])
def test_a_run_learns_from_a_maze_and_is_scored_by_success(side: str, name: str, tmp_path: Path) -> None:
    result = run_on(POINT, side, name, tmp_path)
    assert result["metric"] == "success_percent"
    assert result["final"] in (0.0, 100.0)
    assert result["evaluation"]["env"] == "ogbench/pointmaze-medium-singletask-task2-v0"
    assert result["dataset"]["transitions"] == 1200
    (row,) = (row for row in rows(only_run(tmp_path)) if "successes" in row)
    assert row["success_percent"] == 100 * np.mean(row["successes"]) == 100 * row["success_rate"]
    assert row["lengths"][0] == 1000 or row["successes"] == [1.0]


@pytest.mark.thorough
@pytest.mark.parametrize(("dataset", "side"), [(POINT, "jax"), (CUBE, "torch")])
def test_a_run_goes_on_in_its_task(dataset: str, side: str, tmp_path: Path) -> None:
    """Rewards and ends of a step are the package's, like those of the data."""
    env = f"ogbench:{dataset}-singletask-task2-v0"
    phases = {"offline_iterations": 2, "online_iterations": 210, "eval_freq": 212, "n_episodes": 1}
    train(side, "finetune/fql", tmp_path, **SMALL["fql"] | phases | {"env": env, "batch_size": 8})
    run = only_run(tmp_path)
    (steps,) = (np.load(path) for path in (run / "checkpoints").glob("experience_*.npz"))
    limit = 200 if dataset == CUBE else 1000
    assert len(steps["rewards"]) == 210
    np.testing.assert_array_equal(np.flatnonzero(steps["timeouts"]) + 1, [limit] if limit < 210 else [])
    np.testing.assert_array_equal(steps["rewards"], -1.0)
    np.testing.assert_array_equal(steps["paid"], -1.0)
    assert not steps["terminals"].any()
    result = json.loads((run / "result.json").read_text())
    assert result["metric"] == "success_percent"
    assert (result["training_regret"], result["success_rate_after_online"]) == (1.0 if limit < 210 else None, 0.0)


@pytest.mark.thorough
def test_a_run_learns_from_a_cube(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its set's row: the weight of the distance is that of FQL's authors. The policy can be played."""
    result = run_on(CUBE, "torch", "fql", tmp_path)
    run = only_run(tmp_path)
    assert "distill_coef: 300.0" in (run / "config.yaml").read_text()
    assert (result["metric"], result["dataset"]["transitions"]) == ("success_percent", 240)
    assert rows(run)[-1]["lengths"] == [200]
    capsys.readouterr()
    play.main([str(run), "--episodes", "1"])
    first, average, *_ = capsys.readouterr().out.splitlines()
    assert first == "episode 1: return -200.0 in 200 steps, success in % 0.0"
    assert average == "success in %: 0.0 on average"
