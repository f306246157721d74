"""`corl-twins sweep --ray`: the same runs on a cluster of two simulated machines, whichever process is killed."""

import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.__main__ import main
from shared.commands import sweep
from shared.commands.sweeping import on_ray
from shared.commands.sweeping.cluster import Cluster, Share
from shared.commands.sweeping.plan import cells, read
from shared.commands.sweeping.processes import order
from shared.errors import InputError
from shared.frameworks.twins import load_twin
from shared.runs.configs import dump
from shared.runs.resuming import run_name
from tests.commands.test_sweep import BC, DATASET, SHORT, commands, wait_until
from tests.runs.stopped_runs import assert_same_bits

# Enough to kill three things on the way
RUNS = 5
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two machines with one processor core each, as far as Ray knows; `second` is the one that may disappear."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray import cluster_utils

        made = cluster_utils.Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
        made.second = made.add_node(**NODE)
        yield made
        made.shutdown()


@pytest.fixture
def start(cluster: Any, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts a sweep of BC in PyTorch on the cluster as a separate process; leaves none running."""
    processes = []

    def started(*given: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "shared", "sweep", *BC, "--frameworks", "torch", "--ray", cluster.address]
        command += ["--folder", str(tmp_path / "sweep"), *SHORT, *given]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, **pipes))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.thorough
def test_runs_are_made_and_failures_told(start: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    """A run with bad input is not retried; Ray itself prints nothing."""
    folder, broken = tmp_path / "sweep", str(tmp_path / "broken.hdf5")
    Path(broken).touch()
    printed, said = (process := start("--datasets", broken, DATASET)).communicate(timeout=300)
    assert process.returncode == 1
    (log,) = (folder / "logs").glob("BC-broken-*.log")
    assert said.splitlines() == [
        f"failed: any_percent_bc (torch) on {broken}, seed 0: {log.read_text().splitlines()[-1]} "
        f"(exit status 2, see {log})",
        "runs that failed: 1; mend the cause and call this again",
    ]
    first, done = printed.splitlines()
    assert first == f"2 runs in {folder}: 0 finished, 2 to do"
    assert done.startswith(f"done: any_percent_bc (torch) on {DATASET}, seed 0: ")
    assert len(list(folder.glob("*/result.json"))) == 1


def test_more_than_any_machine_has_is_refused() -> None:
    """Ray would wait forever for such a machine. One that has left does not count."""
    nodes = [{"Alive": True, "Resources": {"CPU": 1.0}}, {"Alive": False, "Resources": {"CPU": 1.0, "GPU": 1.0}}]
    options, _ = sweep.parse_arguments([*BC, "--ray", "--gpus", "0.5"])
    machines = object.__new__(Cluster)
    machines._ray, machines.share = SimpleNamespace(nodes=lambda: nodes), Share(gpus=options.gpus)
    expected = "no machine of the Ray cluster has 1 CPUs and 0.5 GPUs for a run: set --threads and --gpus lower"
    with pytest.raises(InputError, match=expected):
        machines.check_room()
    machines.share = Share()
    machines.check_room()


@pytest.mark.thorough
def test_time_and_attempts_come_to_an_end(start: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    """A run that dies is reported once its attempts are used up; a run cut by the time limit is not a failure."""
    folder, long = tmp_path / "sweep", ["--max_timesteps", "10000000", "--eval_freq", "500"]
    process = start(*long, "--attempts", "0")
    wait_until(lambda: bool(commands(folder)), 300)
    commands(folder)[0].kill()
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 1
    assert said.splitlines()[-1] == "runs that failed: 1; mend the cause and call this again"
    process = start(*long, "--hours", "0.002")
    said = process.communicate(timeout=300)[1]
    assert (process.returncode, said) == (1, "runs for which the time was too short: 1; call this again\n")
    wait_until(lambda: not commands(folder), 30)


def test_a_run_that_is_finished_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a worker died between the end of a run and its report."""
    given = [*BC, "--frameworks", "torch", "--folder", str(tmp_path), *SHORT]
    batch = tuple(cells(read(*sweep.asked(*sweep.parse_arguments(given)))))
    wanted = order(batch, {}, tmp_path)
    heard, made = [], []
    monkeypatch.setattr("ray.tune.report", heard.append)
    monkeypatch.setattr(on_ray, "carry_out", lambda *given: made.append(given) or 0)
    wanted.log.touch()
    on_ray.make_run({"number": 0}, [wanted], [pickle.dumps(batch)])
    assert (len(made), heard) == (1, [{"status": 0}])
    folder = tmp_path / f"{run_name(batch[0].config)}-torch-0123abcd"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump(batch[0].config))
    (folder / "metrics.jsonl").touch()
    (folder / "result.json").write_text("{}")
    on_ray.make_run({"number": 0}, [wanted], [pickle.dumps(batch)])
    assert (len(made), heard) == (1, [{"status": 0}] * 2)


FAULTS = {
    "not asked for": (["--gpus", "1"], "--gpus is for a Ray cluster: add --ray, or leave it out"),
    "more than one": (["--ray", "--gpus", "1.5"], "'1.5' is neither a share of a GPU nor a whole number"),
    "no time": (["--ray", "--hours", "0"], "'0' is no time"),
    "fewer attempts": (["--ray", "--attempts", "-1"], "-1 is less than 0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_flags_are_refused(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, message = FAULTS[fault]
    assert main(["sweep", *BC, "--folder", str(tmp_path), *given]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_ray_a_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it now fails
    assert main(["sweep", *BC, "--folder", str(tmp_path), "--ray"]) == 2
    assert "pip install 'corl-twins[sweep]'" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """At once, and without Ray's own message."""
    assert main(["sweep", *BC, "--folder", str(tmp_path / "sweep"), "--ray", "127.0.0.1:1"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: Ray does not answer at 127.0.0.1:1 (")
    assert said.count("\n") == 1


@pytest.mark.thorough
@pytest.mark.timeout(1800)  # a process for each run, on two cores that may have other work
def test_whatever_dies_all_runs_end_with_the_same_bits(
    start: Callable[..., subprocess.Popen], cluster: Any, tmp_path: Path
) -> None:
    """A worker, a machine and the driver are killed once each. The runs equal those made one by one without Ray."""
    longer = ["--seeds", str(RUNS), "--max_timesteps", "200", "--eval_freq", "50"]
    folder, train = tmp_path / "sweep", load_twin("torch", "any_percent_bc").train

    def finished() -> int:
        return len(list(folder.glob("*/result.json")))

    first = start(*longer)
    wait_until(lambda: finished() > 0 and bool(commands(folder)), 300)
    commands(folder)[0].parent().kill()
    wait_until(lambda: finished() > 1, 300)
    cluster.remove_node(cluster.second, allow_graceful=False)
    wait_until(lambda: finished() > 2 and bool(commands(folder)), 300)
    first.kill()
    first.communicate()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    assert len(before) < RUNS
    cluster.second = cluster.add_node(**NODE)
    second = start(*longer)
    printed, said = second.communicate(timeout=500)
    assert (second.returncode, said.splitlines()[-1:]) == (0, []), said
    assert printed.splitlines()[-1].startswith(f"all {RUNS} runs are finished")
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())
    for cell in cells(read(*sweep.asked(*sweep.parse_arguments([*BC, "--frameworks", "torch", *SHORT, *longer])))):
        theirs = train(dataclasses.replace(cell.config, runs_path=str(tmp_path / "alone"), resume="")).folder
        ours = next(folder.glob(f"*-s{cell.config.seed}-torch-*/result.json")).parent
        assert_same_bits(ours, theirs)
