"""The files that a run leaves, and its output on the way."""

import dataclasses
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from shared.envs.evaluation import Evaluator
from shared.errors import InputError
from shared.files import write_atomically
from shared.runs.configs import parse
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Task, load_task
from shared.runs.wandb_side import WandbLogger


@dataclasses.dataclass(frozen=True)
class Config(TransitionsConfig):
    """The settings of a short run."""

    name: str = "CQL"
    group: str = "CQL-D4RL"
    log_freq: int | None = None
    seed: int = 3
    buffer_size: int = 1000
    normalize: bool = True
    n_episodes: int = 2
    max_timesteps: int = 40
    eval_freq: int = 10


@pytest.fixture
def config(write_hdf5: Callable[..., Path], tmp_path: Path) -> Config:
    """The settings of a run on a small dataset with known policies."""
    path = write_hdf5({"env_id": "d4rl/hopper-v2", "medium_return_mean": 1500.0, "expert_return_mean": 3000.0})
    return Config(env=str(path), runs_path=str(tmp_path / "runs"))


def push(observations: np.ndarray) -> np.ndarray:
    """A policy that soon falls."""
    return np.full((len(observations), 3), 0.5)


def run_to_the_end(config: Config, task: Task) -> Run:
    """Makes four evaluations, ten updates apart."""
    with Run(config, task, "cql", "torch", device="cpu") as run:
        for step in range(10, 50, 10):
            run.advance(10)
            run.log(step, {"loss": np.float32(step / 4)})
            run.evaluate(step, lambda observations, step=step: push(observations) * step / 40)
    return run


def rows(run: Run) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_folder(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_to_the_end(config, load_task(config))
    assert run.folder.parent == Path(config.runs_path)
    assert run.folder.name.startswith("CQL-hopper-s3-torch-")
    assert len(run.folder.name.rpartition("-")[2]) == 8
    files = sorted(path.name for path in run.folder.iterdir())
    assert files == ["config.yaml", "learning_curve.png", "metrics.jsonl", "result.json"]
    logged, evaluated = rows(run)[::2], rows(run)[1::2]
    assert [(row["step"], row["loss"]) for row in logged] == [(10, 2.5), (20, 5.0), (30, 7.5), (40, 10.0)]
    assert logged[0].keys() == {"step", "loss", "updates_per_second", "seconds"}
    assert all(row["updates_per_second"] > 0 for row in rows(run))
    assert [len(row["returns"]) for row in evaluated] == [2] * 4
    assert evaluated[0]["return_mean"] == pytest.approx(np.mean(evaluated[0]["returns"]))
    assert evaluated[0]["d4rl_normalized_score"] == pytest.approx(
        100 * (evaluated[0]["return_mean"] + 20.272305) / (3234.3 + 20.272305)
    )
    assert matplotlib.image.imread(run.folder / "learning_curve.png").shape[2] == 4
    printed = capsys.readouterr()
    assert printed.out.count("s after the process started") == 1
    assert printed.out.count("D4RL score") == 4 + 1 + 2
    assert str(run.folder) in printed.out.splitlines()[-4]
    assert printed.err == ""  # no bar without a terminal


def test_a_single_evaluation_is_told_once(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    with Run(config, load_task(config), "cql", "torch", device="cpu") as run:
        run.advance(40)
        run.evaluate(40, push)
    said = capsys.readouterr().out
    assert " at the end\n" in said
    assert "over the last" not in said


def test_the_result_says_what_the_scores_depend_on(config: Config) -> None:
    task = load_task(config)
    run = run_to_the_end(config, task)
    result = json.loads((run.folder / "result.json").read_text())
    assert result == run.result
    scores = [row["d4rl_normalized_score"] for row in rows(run)[1::2]]
    assert result["metric"] == "d4rl_normalized_score"
    assert result["final"] == pytest.approx(scores[-1])
    assert result["mean_of_last_3"] == pytest.approx(np.mean(scores[1:]))
    assert result["best"] == pytest.approx(max(scores))
    assert result["final_return_mean"] == rows(run)[-1]["return_mean"]
    assert result["data_policies"] == pytest.approx({"expert": 92.8, "medium": 46.71}, abs=0.01)
    assert (result["algorithm"], result["framework"], result["seed"], result["updates"]) == ("cql", "torch", 3, 40)
    assert result["evaluation"] == task.evaluator.fingerprint
    assert result["dataset"] == task.fingerprint
    assert {"python", "numpy", "mujoco", "torch"} <= result["versions"].keys()
    assert result["hardware"]["device"] == "cpu"
    assert result["hardware"]["cores"] >= 1
    seconds = result["seconds"]
    assert seconds["total"] == pytest.approx(seconds["training"] + seconds["evaluating"], abs=0.1)
    assert seconds["to_first_update"] > 0


def test_the_config_of_a_run_loads_again(config: Config) -> None:
    run = run_to_the_end(config, load_task(config))
    # Any table will do, because the file gives every setting.
    assert parse(Config, "cql", ["--config_path", str(run.folder / "config.yaml")]) == config


def test_a_return_in_another_environment_is_no_d4rl_score(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    config = dataclasses.replace(config, eval_env="Hopper-v5")
    run = run_to_the_end(config, load_task(config))
    written = (run.folder / "metrics.jsonl").read_text() + (run.folder / "result.json").read_text()
    assert "normalized_score" not in written
    assert "score" not in capsys.readouterr().out
    assert run.result["metric"] == "return_mean"
    assert run.result["final"] == run.result["final_return_mean"]
    assert run.result["data_policies"] == {"expert": 3000.0, "medium": 1500.0}


def test_a_return_in_gymnasium_robotics_is_normalised_and_no_d4rl_score(
    config: Config, write_hdf5: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """It has its own name in files, in print and on the curve's axis."""
    path = write_hdf5({"expert_return_mean": 161.86}, observations=np.zeros((60, 4)), actions=np.zeros((60, 2)))
    config = dataclasses.replace(config, env=str(path), eval_env="robotics/maze2d-umaze")
    with Run(config, load_task(config), "cql", "torch", device="cpu") as run:
        run.advance(10)
        run.evaluate(10, lambda observations: np.zeros((len(observations), 2)))
    row, result = rows(run)[0], json.loads((run.folder / "result.json").read_text())
    assert row["normalized_return_not_d4rl"] == pytest.approx(100 * (row["return_mean"] - 23.85) / (161.86 - 23.85))
    assert (result["metric"], result["final"]) == ("normalized_return_not_d4rl", row["normalized_return_not_d4rl"])
    assert result["data_policies"] == {"expert": pytest.approx(100)}
    assert not result["evaluation"]["d4rl_exact"]
    written = (run.folder / "metrics.jsonl").read_text() + (run.folder / "result.json").read_text()
    assert "d4rl_normalized_score" not in written
    printed = capsys.readouterr().out
    assert "D4RL score" not in printed
    assert printed.count("normalised return (not D4RL: Gymnasium-Robotics)") == 3


def test_the_rate_leaves_out_the_first_interval_and_evaluations(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("shared.runs.progress.time.perf_counter", lambda: clock[0])

    def spend(seconds: float) -> None:
        clock[0] += seconds

    def slow_policy(observations: np.ndarray) -> np.ndarray:
        spend(1000)
        return push(observations)

    with Run(config, load_task(config), "cql", "torch") as run:
        spend(50)
        run.advance(10)
        run.log(10, {})
        run.evaluate(10, slow_policy)
        spend(4)
        run.advance(20)
        run.log(30, {})
    first, _, second = rows(run)
    assert first["updates_per_second"] == 10 / 50
    assert second["updates_per_second"] == 20 / 4
    assert run.result["seconds"]["training"] == 54
    assert run.result["seconds"]["total"] == 54 + run.result["seconds"]["evaluating"]


def test_a_failed_run_keeps_its_metrics_and_has_no_result(config: Config) -> None:
    task = load_task(config)
    run = Run(config, task, "cql", "torch")

    def fail() -> None:
        with run:
            run.evaluate(10, push)
            run.log(10, {"loss": 1.0})
            assert len(rows(run)) == 2  # written at once
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(rows(run)) == 2
    assert {path.name for path in run.folder.iterdir()} == {"config.yaml", "learning_curve.png", "metrics.jsonl"}
    assert run.result == {}


def test_the_environments_are_closed_when_the_run_ends(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(Evaluator, "close", lambda self: closed.append(self))
    task = load_task(config)
    with Run(config, task, "cql", "torch"):
        assert closed == []
    assert closed == [task.evaluator]


def test_a_run_without_an_evaluation_ends_well(config: Config) -> None:
    with Run(config, load_task(config), "cql", "torch") as run:
        run.advance(1)
    assert run.result["final"] is None
    assert not (run.folder / "learning_curve.png").exists()


def test_nothing_is_written_before_the_run_is_entered(config: Config) -> None:
    Run(config, load_task(config), "cql", "torch")
    assert not Path(config.runs_path).exists()


def test_two_runs_have_two_folders(config: Config) -> None:
    task = load_task(config)
    assert Run(config, task, "cql", "torch").folder != Run(config, task, "cql", "torch").folder


def test_a_name_cannot_leave_the_folder_of_runs(config: Config) -> None:
    config = dataclasses.replace(config, name="../../elsewhere")
    assert Run(config, load_task(config), "cql", "torch").folder.parent == Path(config.runs_path)


def test_a_folder_that_cannot_be_made_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = dataclasses.replace(config, runs_path=str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot make .*\(Not a directory\): make room, or set runs_path"):
        Run(config, load_task(config), "cql", "torch").__enter__()


def test_checkpoints_lie_under_the_runs_name(config: Config) -> None:
    config = dataclasses.replace(config, checkpoints_path=str(Path(config.runs_path).parent / "models"))
    with Run(config, load_task(config), "cql", "torch") as run:
        run.save(5000, lambda path, **facts: write_atomically(path, b"weights"))
    assert (Path(config.checkpoints_path) / run.folder.name / "checkpoint_5000.pt").read_bytes() == b"weights"


# ---- Weights & Biases ----------------------------------------------------------------------------------------------


@pytest.fixture
def nobody_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder without keys."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


def test_wandb_is_not_imported_unless_asked_for(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it now fails
    run_to_the_end(config, load_task(config))


def wandb_record(run: Run, texts: tuple[bytes, ...]) -> bytes:
    """The record of Weights & Biases, once these texts are in it, or after half a minute.

    Its own process writes the file, on a busy machine some time after the run has ended.
    """
    (record,) = (run.folder / "wandb").glob("offline-run-*/run-*.wandb")
    end = time.monotonic() + 30
    while time.monotonic() < end and not all(text in record.read_bytes() for text in texts):
        time.sleep(0.1)
    return record.read_bytes()


@pytest.mark.thorough
@pytest.mark.usefixtures("nobody_logged_in")
def test_wandb_keeps_runs_of_one_process_apart(config: Config) -> None:
    """As several seeds do; each has the rows of its run."""
    first, second = (dataclasses.replace(config, wandb_mode="offline", seed=seed) for seed in (1, 2))
    with Run(first, load_task(first), "cql", "jax") as one, Run(second, load_task(second), "cql", "jax") as two:
        for run, name in ((one, "loss_of_one"), (two, "loss_of_two")):
            run.log(1, {name: 0.5})
            run.evaluate(1, push)
    for run, name, other in ((one, b"loss_of_one", b"loss_of_two"), (two, b"loss_of_two", b"loss_of_one")):
        texts = (name, b"d4rl_normalized_score", b"CQL-D4RL", run.folder.name.encode())
        record = wandb_record(run, texts)
        assert all(text in record for text in texts)
        # The terminal's output is in it too, where a name is followed by a space.
        assert re.search(name + b"[^ ]", record)
        assert not re.search(other + b"[^ ]", record)


@pytest.mark.usefixtures("nobody_logged_in")
def test_wandb_online_without_a_key_is_refused_before_anything_is_written(config: Config) -> None:
    config = dataclasses.replace(config, wandb_mode="online")
    with pytest.raises(InputError, match="no API key: run `wandb login` once, or set wandb_mode to offline"):
        Run(config, load_task(config), "cql", "torch")
    assert not Path(config.runs_path).exists()


@dataclasses.dataclass
class FakeWandb:
    """Records its calls, or fails to start."""

    starts: bool = True
    exit_codes: list[int] = dataclasses.field(default_factory=list)

    class Error(Exception):
        """The base of the library's own errors."""

    def init(self, **settings: Any) -> "FakeWandb":
        """Starts unless configured to fail; the run that it returns is itself."""
        if not self.starts:
            raise self.Error("no\nnetwork")
        return self

    def log(self, row: dict[str, Any], step: int) -> None:
        """Accepts anything."""

    def finish(self, exit_code: int) -> None:
        """Records how the run ended."""
        self.exit_codes.append(exit_code)


@pytest.mark.parametrize(("error", "exit_code"), [(None, 0), (KeyboardInterrupt, 1)])
def test_wandb_learns_how_the_run_ended(
    config: Config, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None, exit_code: int
) -> None:
    fake = FakeWandb()
    monkeypatch.setattr("shared.runs.loggers.wandb_logger", lambda config: WandbLogger(fake, config))
    try:
        with Run(config, load_task(config), "cql", "torch") as run:
            run.log(1, {})
            if error is not None:
                raise error
    except KeyboardInterrupt:
        pass
    assert fake.exit_codes == [exit_code]


def test_no_folder_is_left_where_wandb_cannot_start(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FakeWandb(starts=False)
    monkeypatch.setattr("shared.runs.loggers.wandb_logger", lambda config: WandbLogger(broken, config))
    with pytest.raises(InputError, match=r"cannot start \(no network\): set wandb_mode to offline"):
        Run(config, load_task(config), "cql", "torch").__enter__()
    assert list(Path(config.runs_path).iterdir()) == []
