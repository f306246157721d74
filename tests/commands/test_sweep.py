"""`corl-twins sweep`: its expansion into runs, refusals before anything starts; no run is lost or made twice."""

import argparse
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from shared.__main__ import main
from shared.commands import sweep
from shared.commands.sweeping.plan import LARGEST, Cell, batches, cells, read
from shared.commands.sweeping.processes import Ended, Processes, order
from shared.frameworks.twins import ROOT, load_twin
from shared.runs import resuming
from shared.runs.configs import dump, parse
from shared.runs.metrics import MetricsFile
from tests.runs.stopped_runs import assert_same_bits

DATASET = "mini/hopper-mostly-expert"
SHORT = ["--max_timesteps", "4", "--eval_freq", "2", "--n_episodes", "1", "--batch_size", "8", "--device", "cpu"]
BC = ["--algorithms", "any_percent_bc", "--datasets", DATASET]


def planned(folder: Path, **values: Any) -> list[Cell]:
    """The runs of a sweep, given in the form of a sweep's file."""
    return cells(read({"algorithms": ["iql"], "datasets": [DATASET], "folder": str(folder), **values}, ""))


def test_every_combination_is_a_run(tmp_path: Path) -> None:
    """In the order of the lists; an algorithm's own changes apply only to it, and override those for all."""
    found = planned(
        tmp_path,
        algorithms={
            "td3_bc": {"settings": {"discount": "0.9"}},
            "iql": {"grid": {"inverse_temperature": ["1", "2"]}},
            "cql": None,
        },
        frameworks=["torch", "jax"],
        seeds=["3", "7"],
        settings={"discount": "0.5"},
    )
    assert len(found) == (1 + 2 + 1) * 2 * 2
    assert [cell.label for cell in found[:2]] == [f"td3_bc (torch) on {DATASET}, seed {seed}" for seed in (3, 7)]
    assert {cell.config.discount for cell in found if cell.algorithm == "td3_bc"} == {0.9}
    assert {cell.config.discount for cell in found if cell.algorithm == "cql"} == {0.5}
    assert [cell.config.inverse_temperature for cell in found if cell.algorithm == "iql"] == [1.0, 1.0, 2.0, 2.0] * 2
    assert found[-1].label == f"cql (jax) on {DATASET}, seed 7"


def test_seeds_are_a_number_or_a_list(tmp_path: Path) -> None:
    assert [cell.config.seed for cell in planned(tmp_path, seeds="3")] == [0, 1, 2]
    assert [cell.config.seed for cell in planned(tmp_path, seeds=["3"])] == [3]


def test_flags_give_the_config(tmp_path: Path) -> None:
    """Lists, None, the dataset's own row, and a reference's names of settings."""
    settings = {"gamma": "0.9", "critic_hidden_dims": ["8", "9"], "return_threshold": None}
    algorithms = {"td3_bc": None, "evaluation/fqe": {"settings": settings}}
    for cell in planned(tmp_path, algorithms=algorithms, seeds=["2"]):
        config_class = load_twin(cell.framework, cell.algorithm).TrainConfig
        assert parse(config_class, cell.algorithm, list(cell.flags)) == cell.config
    assert (cell.config.discount, cell.config.critic_hidden_dims) == (0.9, (8, 9))


def test_an_algorithms_own_changes_count_under_any_name(tmp_path: Path) -> None:
    """Our name overrides a reference's name given for all, and the other way round; labels use our names."""
    algorithms = {"cql": {"settings": {"discount": "0.9"}, "grid": {"soft_target_tau": ["0.1", "0.2"]}}}
    found = planned(tmp_path, algorithms=algorithms, settings={"gamma": "0.5"}, grid={"tau": ["1"]})
    assert [(cell.config.discount, cell.config.tau) for cell in found] == [(0.9, 0.1), (0.9, 0.2)]
    assert found[0].label.endswith("seed 0, tau 0.1")


FAULTS = {
    "nothing": ([], "algorithms: field required"),
    "algorithm": (["--algorithms", "ikl", "--datasets", DATASET], "unknown algorithm 'ikl'; nearest: iql"),
    "dataset": (["--algorithms", "iql", "--datasets", "mini/hoper"], "unknown dataset 'mini/hoper'"),
    "framework": ([*BC, "--frameworks", "numpy"], "frameworks.0: input should be 'torch' or 'jax'"),
    "seed": ([*BC, "--seeds", "1", "-1"], "seeds"),
    "no seeds": ([*BC, "--seeds", "0"], "seeds: input should be greater than 0"),
    "setting": ([*BC, "--bach_size", "8"], "any_percent_bc: bach_size is not a setting; did you mean batch_size?"),
    "value": ([*BC, "--batch_size", "many"], "any_percent_bc: batch_size must be a whole number, not 'many'"),
    "bound": ([*BC, "--batch_size=0"], "batch_size"),
    "flag without a value": ([*BC, "--batch_size"], "--batch_size needs a value"),
    "grid over no setting": ([*BC, "--grid", "tau=1,2"], "any_percent_bc: tau is not a setting"),
    "grid without values": ([*BC, "--grid", "batch_size"], "--grid batch_size: write the setting and its values"),
    "setting twice": (["--algorithms", "cql", "--datasets", DATASET, "--tau=1", "--soft_target_tau=1"], "same setting"),
    "decided by another name": ([*BC, "--train_seed", "3"], "seed is no setting of a sweep"),
    "decided": ([*BC, "--seed", "3"], "seed is no setting of a sweep"),
    "same runs": ([*BC, "--grid", "discount=1,1.0"], "two runs of the sweep are the same"),
    "same algorithm": (["--algorithms", "iql", "iql", "--datasets", DATASET], "algorithms has iql twice"),
    "too many": ([*BC, "--seeds", "1000000"], f"the sweep has 1000000 runs, and {LARGEST} at most are made"),
    "no file": (["nowhere.yaml"], "cannot read nowhere.yaml"),
    "two files": (["nowhere.yaml", "other.yaml"], "unknown argument 'other.yaml'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_sweep_is_refused_before_anything_starts(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = FAULTS[fault]
    assert main(["sweep", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


FILES = {
    "misspelt": "algoritms: [iql]",
    "a word for a list": f"algorithms: [iql]\ndatasets: {DATASET}",
    "a number for changes": "algorithms: {iql: 3}\ndatasets: [a]",
    "a number for a grid": "algorithms: [iql]\ndatasets: [a]\ngrid: {inverse_temperature: 3}",
    "an empty grid": "algorithms: [iql]\ndatasets: [a]\ngrid: {inverse_temperature: []}",
    "no mapping": "- iql",
    "no YAML": "algorithms: [",
}


@pytest.mark.parametrize("fault", FILES)
def test_a_bad_file_is_refused_by_name(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(FILES[fault])
    assert main(["sweep", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"error: {path}" in said
    assert said.count("\n") == 1


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "first.yaml"
    path.write_text(
        f"algorithms: [iql]\ndatasets: [{DATASET}]\nsettings: {{tau: 0.1}}\n"
        "grid: {inverse_temperature: [1, 2]}\nseeds: 4"
    )
    given = [
        str(path),
        "--seeds",
        "2",
        "5",
        "--tau=0.2",
        "--grid",
        "inverse_temperature=3",
        "--grid",
        "discount=0.9,0.8",
    ]
    values, where = sweep.asked(*sweep.parse_arguments(given))
    plan = read(values, where)
    assert (plan.seeds, plan.settings) == ([2, 5], {"tau": "0.2"})
    assert plan.grid == {"inverse_temperature": ["3"], "discount": ["0.9", "0.8"]}
    assert plan.folder == Path("sweeps/first")


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "number"), [("offline", 10 * 30 * 4), ("finetune", 6 * 10 * 4)])
def test_corls_tables_are_sweeps(name: str, number: int) -> None:
    """With the same number of runs as CORL's."""
    path = ROOT / "benchmarks" / "sweeps" / f"corl-{name}.yaml"
    plan = read(*sweep.asked(*sweep.parse_arguments([str(path)])))
    assert len(cells(plan)) == number
    assert plan.folder == Path("sweeps") / f"corl-{name}"


def test_a_second_call_makes_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It does nothing if all runs exist. It prints the last line of a failed run, and still makes the other runs."""
    folder, broken = tmp_path / "sweep", str(tmp_path / "broken.hdf5")
    Path(broken).touch()
    command = ["sweep", *BC, "--frameworks", "torch", "--folder", str(folder), *SHORT, "--threads", "1"]
    assert main([*command, "--seeds", "2", "--list"]) == 0
    assert capsys.readouterr().out.count(resuming.RunStatus.MISSING.value) == 2
    assert not folder.exists()
    assert main([*command, "--datasets", broken, DATASET, "--jobs", "2"]) == 1
    printed, said = capsys.readouterr()
    assert "2 runs in" in printed
    assert f"done: any_percent_bc (torch) on {DATASET}, seed 0" in printed
    (log,) = (folder / "logs").glob("BC-broken-s0-torch-*.log")
    assert f"failed: any_percent_bc (torch) on {broken}, seed 0: error: " in said
    assert str(log) in said
    assert "runs that failed: 1;" in said
    (result,) = folder.glob("*/result.json")
    result.unlink()
    assert main(command) == 0
    assert "0 finished, 1 to do" in capsys.readouterr().out
    finished = result.stat().st_mtime_ns
    assert main(command) == 0
    assert "1 finished, 0 to do" in capsys.readouterr().out
    assert result.stat().st_mtime_ns == finished
    assert len(list(folder.glob("*/config.yaml"))) == 1


def test_a_missing_file_ends_a_sweep_before_its_first_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, missing = tmp_path / "sweep", str(tmp_path / "missing.hdf5")
    assert main(["sweep", *BC, "--folder", str(folder), "--datasets", missing]) == 2
    assert f"the dataset '{missing}' does not exist: check its path" in capsys.readouterr().err
    assert not folder.exists()


def test_what_shares_a_program(tmp_path: Path) -> None:
    """JAX's consecutive seeds, up to the requested number; nothing else."""
    found = planned(
        tmp_path, frameworks=["torch", "jax"], seeds=["0", "1", "2", "4", "5"], grid={"inverse_temperature": ["1", "2"]}
    )
    made = [tuple(cell.config.seed for cell in batch) for batch in batches(found, 2)]
    assert made == [(0,), (1,), (2,), (4,), (5,)] * 2 + [(0, 1), (2,), (4, 5)] * 2
    assert [cell for batch in batches(found, 3) for cell in batch] == found
    assert list(map(len, batches(found, 1))) == [1] * 20
    assert order(batches(found, 3)[10], {}, tmp_path).arguments[-1] == "--seeds=3"


@pytest.mark.thorough
def test_seeds_in_one_program_are_runs_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second call makes only the run that is missing."""
    command = ["sweep", *BC, "--seeds", "2", "--folder", str(tmp_path), *SHORT, "--together", "2"]
    assert main(command) == 0
    assert capsys.readouterr().out.count("done: any_percent_bc (jax)") == 2
    results = sorted(tmp_path.glob("*/result.json"))
    assert [json.loads(path.read_text())["seeds_at_once"] for path in results] == [2, 2]
    results[0].unlink()
    assert main(command) == 0
    assert "1 finished, 1 to do" in capsys.readouterr().out
    assert len(list(tmp_path.glob("*/config.yaml"))) == 2


def test_a_run_is_known_by_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of another process or a finished one is left alone; a run with other settings is another run."""
    command = ["sweep", *BC, "--frameworks", "torch", "--folder", str(tmp_path), *SHORT]
    (cell,) = cells(read(*sweep.asked(*sweep.parse_arguments(command[1:]))))
    folder = tmp_path / f"{resuming.run_name(cell.config)}-torch-0123abcd"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump(cell.config))
    assert resuming.run_status(cell.config, "any_percent_bc", "torch") == (resuming.RunStatus.MISSING, None)
    metrics = MetricsFile(folder / "metrics.jsonl")
    assert resuming.run_status(cell.config, "any_percent_bc", "torch") == (resuming.RunStatus.GOING_ON, folder)
    assert resuming.run_status(cell.config, "any_percent_bc", "jax") == (resuming.RunStatus.MISSING, None)
    assert main(command) == 1
    assert "runs that go on in other processes: 1;" in capsys.readouterr().err
    metrics.close()
    (folder / "result.json").write_text("{}")
    assert resuming.run_status(cell.config, "any_percent_bc", "torch") == (resuming.RunStatus.FINISHED, folder)
    other = dataclasses.replace(cell.config, batch_size=9)
    assert resuming.run_status(other, "any_percent_bc", "torch") == (resuming.RunStatus.MISSING, None)


@pytest.mark.thorough
def test_what_a_killed_sweep_has_started_is_not_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even before that process has written anything, because the file of its output exists."""
    command = ["sweep", *BC, "--frameworks", "torch", "--folder", str(tmp_path), *SHORT]
    (cell,) = cells(read(*sweep.asked(*sweep.parse_arguments(command[1:]))))
    with Processes(1, {}, tmp_path / "logs") as processes:
        heard: list[Ended] = []
        processes.run([(cell._replace(flags=("--help",)),)], heard.append)
    (ended,) = heard
    assert ended.status == 0
    printed = ended.log.read_bytes()
    assert b"any_percent_bc" in printed
    with ended.log.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(command) == 1
    assert "runs that go on in other processes: 1;" in capsys.readouterr().err
    assert ended.log.read_bytes() == printed
    assert not list(tmp_path.glob("*/config.yaml"))


def test_runs_that_are_alike_print_into_one_file(tmp_path: Path) -> None:
    """However the folder is spelled, and whatever device they use; a run with other settings has its own file."""
    (cell,) = planned(tmp_path)
    alike = dataclasses.replace(cell.config, runs_path=f"{tmp_path}/../{tmp_path.name}", device="cpu")
    assert resuming.fingerprint(alike) == resuming.fingerprint(cell.config)
    assert resuming.fingerprint(dataclasses.replace(alike, discount=0.9)) != resuming.fingerprint(alike)


def test_one_sweep_at_a_time_works_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileLock(tmp_path / ".sweep.lock"):
        assert main(["sweep", *BC, "--folder", str(tmp_path)]) == 2
    assert f"another sweep works in {tmp_path}" in capsys.readouterr().err


LONG = ["--max_timesteps", "4000", "--eval_freq", "500", "--n_episodes", "1", "--batch_size", "8", "--device", "cpu"]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen]]:
    """Starts the same sweep as a separate process; leaves no process running."""
    command = [sys.executable, "-m", "shared", "sweep", *BC, "--frameworks", "torch", "--seeds", "2"]
    command += ["--folder", str(tmp_path / "sweep"), *LONG, "--threads", "1"]
    processes = []

    def start() -> subprocess.Popen:
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def wait_until(happened: Callable[[], bool], seconds: float = 120) -> None:
    """Waits until something has happened."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.thorough
def test_stopped_and_killed_a_sweep_ends_with_the_same_bits(
    started: Callable[[], subprocess.Popen], tmp_path: Path
) -> None:
    """Ctrl-C, then SIGKILL for a run and the driver: the next call continues. The run equals one made in sequence."""
    folder = tmp_path / "sweep"
    first = started()
    wait_until(lambda: bool(list(folder.glob("*/checkpoints/*"))))
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert len(list(folder.glob("*/config.yaml"))) == 1
    second = started()
    wait_until(lambda: bool(commands(folder)))
    commands(folder)[0].kill()
    assert "failed: any_percent_bc (torch)" in second.communicate(timeout=240)[0]
    assert second.returncode == 1
    third = started()
    wait_until(lambda: bool(commands(folder)))
    third.kill()
    third.communicate()
    # The process that it started has this file from its first moment on, before the run has a folder.
    (log,) = (folder / "logs").glob("*-s0-torch-*.log")
    with log.open("ab") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fourth = started().communicate(timeout=240)[0]
    assert "runs that go on in other processes" in fourth or "all 2 runs are finished" in fourth
    wait_until(lambda: not commands(folder))
    assert "2 finished, 0 to do" in started().communicate(timeout=60)[0]
    assert len(list(folder.glob("*/config.yaml"))) == 2
    alone = tmp_path / "alone"
    train = [sys.executable, "-m", "shared", "train", "torch", "any_percent_bc", "--env", DATASET, *LONG]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*train, "--runs_path", str(alone)], env=environment, check=True, stdout=subprocess.DEVNULL)
    ours, theirs = (next(place.glob("*-s0-torch-*/result.json")).parent for place in (folder, alone))
    assert_same_bits(ours, theirs)


def commands(folder: Path) -> list[psutil.Process]:
    """The processes that make runs of the sweep."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if f"--runs_path={folder}" in words and "train" in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.mark.parametrize(("variable", "threads"), [("1", "1"), ("", "7"), ("many", "7"), ("0", "7")])
def test_the_threads_of_a_run_are_the_environments(
    variable: str, threads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it sets none, and then the cores are divided by the jobs."""
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(os, "cpu_count", lambda: 15)
    machines = sweep._machines(argparse.Namespace(jobs=2), tmp_path)
    assert machines._environment["OMP_NUM_THREADS"] == threads
