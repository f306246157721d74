"""The commands as a user types them: their output, their files and their exit codes."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shared.commands.reporting.evaluations import read_run
from shared.runs.configs import cli

pytestmark = pytest.mark.usefixtures("in_haste")

ROOT = Path(__file__).resolve().parents[2]
# For behaviour that all twins share. Each twin's own loop has tests elsewhere: for the rows it writes
# (`parity_tests/ladder/test_run.py`), and for its checkpoints and its result (`tests/runs/test_resume.py`).
SCRIPT = "corl_torch/td3_bc.py"
SHORT = ["--max_timesteps", "10", "--eval_freq", "5", "--n_episodes", "2", "--batch_size", "8"]


def run(script: str, *args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """Runs a script in a process of its own."""
    command = [sys.executable, str(ROOT / script), *args]
    haste = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.run(command, cwd=cwd, env=haste, capture_output=True, text=True, timeout=300)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path) -> Callable:
    """Runs a script's command line in this process, in an empty folder; returns its exit code and both streams."""
    monkeypatch.chdir(tmp_path)

    def type_in(script: str, *args: str) -> tuple[int, str, str]:
        name = Path(script).stem
        twin = importlib.import_module(script.removesuffix(".py").replace("/", "."))
        monkeypatch.setattr(sys, "argv", [script, *args])
        try:
            cli(twin.train, twin.TrainConfig, name)
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return (code, *capsys.readouterr())

    return type_in


@pytest.mark.thorough
def test_a_run_leaves_its_folder(tmp_path: Path) -> None:
    """A short run from another folder: settings, metrics, curve, checkpoint and result; progress on the way."""
    done = run(SCRIPT, *SHORT, "--runs_path", str(tmp_path / "runs"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    names = {"config.yaml", "metrics.jsonl", "learning_curve.png", "result.json", "checkpoints", "checkpoint.pt"}
    assert {path.name for path in folder.iterdir()} == names
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [5, 5, 10, 10]
    result = json.loads((folder / "result.json").read_text())
    assert result["metric"] == "d4rl_normalized_score"
    assert result["final"] == rows[-1]["d4rl_normalized_score"]
    plotted = read_run(folder)
    assert (plotted.metric, plotted.framework) == (result["metric"], result["framework"])
    assert (plotted.values[10], plotted.score()) == (result["final"], result["mean_of_last_3"])
    assert "first update" in done.stdout
    assert "D4RL score" in done.stdout
    assert str(folder) in done.stdout


def test_stock_physics_give_no_d4rl_score(typed: Callable, tmp_path: Path) -> None:
    """A score from Gymnasium's own Hopper is a plain return."""
    code, shown, error = typed(SCRIPT, *SHORT, "--eval_env", "Hopper-v4", "--runs_path", str(tmp_path))
    assert code == 0, error
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    written = (folder / "metrics.jsonl").read_text() + (folder / "result.json").read_text()
    assert "d4rl_normalized_score" not in written
    assert "D4RL score" not in shown


@pytest.mark.parametrize(
    ("arrays", "word"),
    [({"rewards": np.full(60, np.nan)}, "rewards"), ({"observations": np.ones((60, 9))}, "eval_env")],
)
def test_a_bad_file_is_refused(
    arrays: dict, word: str, typed: Callable, write_hdf5: Callable[..., Path], tmp_path: Path
) -> None:
    """Not finite, or not fit for the environment: one line that names it, exit code 2, and nothing written."""
    assert_refused(typed(SCRIPT, "--env", str(write_hdf5(**arrays))), word, tmp_path)


BAD_SETTINGS = {
    "missing file": (["--env", "nowhere.hdf5"], "nowhere.hdf5"),
    "unknown dataset": (["--env", "mini/hoper-medium-expert"], "mini/hopper-medium-expert"),
    "D4RL file that is not there": (["--env", "hopper-medium-v2"], "hopper_medium-v2.hdf5"),
    "unknown flag": (["--discout", "0.9"], "discount"),
    "missing checkpoint": (["--load_model", "nowhere.pt"], "nowhere.pt"),
    "unknown device": (["--device", "abacus"], "abacus"),
    "unknown environment": (["--eval_env", "Hoper-v4"], "Hopper-v4"),
}


@pytest.mark.parametrize("fault", BAD_SETTINGS)
def test_a_bad_setting_is_refused(fault: str, typed: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names the setting or the nearest valid word, exit code 2, and nothing written."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    args, word = BAD_SETTINGS[fault]
    assert_refused(typed(SCRIPT, *args), word, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["torch", "jax"])
def test_a_checkpoint_of_another_algorithm_is_refused(side: str, typed: Callable, tmp_path: Path) -> None:
    """TD3+BC's last checkpoint given to CQL, and half a checkpoint given to its own algorithm."""
    assert typed(f"corl_{side}/td3_bc.py", *SHORT, "--runs_path", str(tmp_path / "runs"))[0] == 0
    (checkpoint,) = (tmp_path / "runs").glob("*/checkpoint.*")
    damaged = tmp_path / f"damaged{checkpoint.suffix}"
    damaged.write_bytes(checkpoint.read_bytes()[:5000])
    before = sorted(tmp_path.rglob("*"))
    for script, path, word in (("cql", checkpoint, "td3_bc"), ("td3_bc", damaged, "cannot be read")):
        model = ["--load_model", str(path), "--runs_path", str(tmp_path / "new")]
        code, _, error = typed(f"corl_{side}/{script}.py", *model)
        assert code == 2
        assert word in error
        assert len(error.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def assert_refused(outcome: tuple[int, str, str], word: str, folder: Path) -> None:
    """Exit code 2, one line with this word, and no folder made."""
    code, _, error = outcome
    assert code == 2, error
    (line,) = error.splitlines()
    assert line.startswith("error: ")
    assert word in line
    assert not [path for path in folder.iterdir() if path.is_dir()]
