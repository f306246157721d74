"""`corl-twins datasets`: its facts about datasets, and one line for what it refuses."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from shared import names
from shared.commands import datasets
from shared.commands.common import ended
from shared.data import cache, checksums, minari_sets, ogbench_sets, sources
from shared.data.cache import Source

WriteHDF5 = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Runs a command that must succeed; returns the lines that it printed."""

    def run_it(*arguments: object) -> list[str]:
        assert ended(datasets.main, [str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out.splitlines()

    return run_it


def test_the_list_names_every_dataset_and_whether_it_is_here(
    run: Callable[..., list[str]], write_hdf5: WriteHDF5, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    write_hdf5().rename(tmp_path / "hopper_medium-v2.hdf5")
    (tmp_path / "hopper_expert-v2.hdf5").write_bytes(b"no HDF5")
    monkeypatch.setattr(minari_sets, "local", lambda: {"minari:mujoco/hopper/medium-v0": ("1,000", "11+3")})
    monkeypatch.setattr(ogbench_sets, "local", dict)
    lines = [line.split() for line in run("list")]
    assert len(lines) == 1 + 136 + len(names.bundled()) + 1
    for line in (
        "id family rows dims cached",
        "hopper-medium-v2 hopper 60 11+3 yes",
        "hopper-expert-v2 hopper damaged 11+3 yes",
        "antmaze-umaze-v2 antmaze - 29+8 no",
        "mini/hopper-medium-expert hopper 50,697 11+3 bundled",
        "minari:mujoco/hopper/medium-v0 hopper 1,000 11+3 yes",
    ):
        assert line.split() in lines


def test_show_tells_what_is_in_a_dataset_and_what_is_left_out(
    run: Callable[..., list[str]], write_hdf5: WriteHDF5, tmp_path: Path
) -> None:
    rewards = np.repeat([1.0, 2, 3, 4, 5, 6], 10)
    observations = np.zeros((60, 11))
    observations[5, 4], observations[50, 10] = -7, 8
    timeouts = np.isin(np.arange(60), (9, 19, 39))
    terminals = np.isin(np.arange(60), (9, 29))
    path = write_hdf5(rewards=rewards, observations=observations, timeouts=timeouts, terminals=terminals)
    lines = run("show", path, "--png", tmp_path / "returns.png")
    said = {topic.strip(): words.strip() for topic, words in (line.split(":", 1) for line in lines[1:])}
    assert {topic: words for topic, words in said.items() if words != "0 to 0"} == {
        "rows": "60 of 11 + 3 numbers (float64)",
        "episodes": "4 of 10 to 10 rows; after the last, 20 rows of an unfinished one",
        "returns": "10 to 40, mean 25, std 11.18",
        "rewards": "1 to 6",
        "states": "-7 to 8; least and greatest of each component:",
        "0": "-0.9996 to 0.9834",
        "1": "-0.9924 to 0.9906",
        "2": "-0.9709 to 0.9843",  # of actions
        "4": "-7 to 0",
        "10": "0 to 8",
        "actions": "-0.9996 to 0.9906; least and greatest of each component:",
        "box": "-1 to 1 in d4rl/hopper-v2",
        "note": "9 components, 0 first, of the observations never change",
        "terminals": "2 (3.333%)",
        "timeouts": "3 (5.000%), marked; 1 of them on terminals",
        "extraction": "keeps 56 of 60 rows; without a next row of their own: 3 that a time limit ended, and the last",
        "histogram of returns": str(tmp_path / "returns.png"),
    }
    assert (tmp_path / "returns.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rewards", [np.full(60, 1e15), np.linspace(1e15, 0.999e15, 60), np.full(60, -1e-300)])
def test_any_returns_and_any_name_are_drawn(
    rewards: np.ndarray, run: Callable[..., list[str]], write_hdf5: WriteHDF5, tmp_path: Path
) -> None:
    """All returns may be equal, or so large that their bins are as narrow as the steps of floating point."""
    path = write_hdf5(rewards=rewards).rename(tmp_path / "a$\\frac$.hdf5")
    assert run("show", path, "--png", tmp_path / "returns.png")[-1].endswith("returns.png")
    assert (tmp_path / "returns.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("returns", [[4.5e16] * 45, [4.5e16, 4.5e16 + 8, 4.5e16 + 16], [0.0, 5e-324], [1, 2, 3]])
def test_a_histogram_counts_every_return(returns: list[float]) -> None:
    edges = datasets._edges(np.array(returns, float))
    assert (np.diff(edges) > 0).all()
    counts, _ = np.histogram(returns, edges)
    assert counts.sum() == len(returns)


def test_time_limits_are_counted_where_they_are_not_marked(
    run: Callable[..., list[str]], write_hdf5: WriteHDF5, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"observations": np.zeros((600, 60)), "actions": np.zeros((600, 9)), "rewards": np.ones(600)}
    path = write_hdf5({}, **arrays, terminals=np.zeros(600), timeouts=None)
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    path = path.rename(names.dataset_location("kitchen-mixed-v0"))
    lines = run("show", "kitchen-mixed-v0", "--png", tmp_path / "returns.png")
    assert "episodes:   2 of 280 to 280 rows; after the last, 40 rows of an unfinished one" in lines
    assert "returns:    280 to 280, mean 280, std 0, D4RL score of the mean 7000.0" in lines
    assert "timeouts:   2 (0.333%), counted, 280 steps each; 0 of them on terminals" in lines
    path.rename(tmp_path / "own.hdf5")
    assert ended(datasets.main, ["show", str(tmp_path / "own.hdf5")]) == 2
    assert ended(datasets.main, ["show", str(tmp_path / "own.hdf5"), "--eval_env", "Hopper-v50"]) == 2
    lines = run("show", tmp_path / "own.hdf5", "--eval_env", "InvertedPendulum-v5")
    assert "box:        -3 to 3 in InvertedPendulum-v5" in lines


def test_no_file_is_left_that_nobody_asked_for(
    run: Callable[..., list[str]], write_hdf5: WriteHDF5, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a copy of a large dataset nor a picture."""
    monkeypatch.setattr(cache, "LARGE", 0)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_hdf5()
    run("show", path)
    assert not list(Path().iterdir())
    assert not (tmp_path / "cache").exists()
    sources.read(str(path))
    assert (tmp_path / "cache").exists(), "a run keeps one"


def test_finite_actions_are_counted(run: Callable[..., list[str]], write_hdf5: WriteHDF5) -> None:
    path = write_hdf5({"env_id": "CartPole-v1"}, actions=np.arange(60) % 3 % 2)
    lines = run("show", path)
    assert lines[1] == "rows:       60 of 11 + 1 of 2 actions (float32)"
    assert "actions:    0 to 1; 0: 66.7%, 1: 33.3%" in lines
    assert "box:        2 actions in CartPole-v1" in lines


def test_show_says_what_looks_wrong(run: Callable[..., list[str]], write_hdf5: WriteHDF5) -> None:
    path = write_hdf5({}, terminals=np.arange(60) % 12 == 11, timeouts=np.zeros(60), rewards=np.ones(60))
    notes = [line.removeprefix("note:").strip() for line in run("show", path) if line.startswith("note:")]
    assert notes[0].startswith("all 5 terminals come after exactly 12 steps, as time limits do")
    assert notes[1] == "every reward is 1: returns say nothing but how long an episode is"
    assert "episodes:   none is complete" in run("show", write_hdf5(terminals=np.zeros(60), timeouts=np.zeros(60)))


def test_verify_takes_minaris_names(run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"observations": np.zeros((5, 3)), "actions": np.zeros((5, 2)), "rewards": np.zeros(5)}
    monkeypatch.setattr(minari_sets, "read", lambda _: Source(rows, {}, sha256="abc"))
    assert run("verify", "minari:some-v0") == ["minari:some-v0: 5 rows of 3 + 2 numbers, SHA-256 abc, whole and usable"]
    assert ended(datasets.main, ["verify", "minari:some-v0", "--record"]) == 2


def test_the_picture_is_named_after_the_dataset(
    run: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    *_, extraction, picture = run("show", "mini/hopper-medium-expert", "--png")
    assert "keeps 50,672 of 50,697 rows; without a next row of their own: 24 that a time limit ended" in extraction
    assert picture.endswith(": mini-hopper-medium-expert-returns.png")
    assert [path.name for path in tmp_path.iterdir()] == ["mini-hopper-medium-expert-returns.png"]


def test_verify_knows_d4rls_files_by_their_bytes(
    run: Callable[..., list[str]], write_hdf5: WriteHDF5, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    path = write_hdf5()
    (line,) = run("verify", path)
    assert line.startswith(f"{path}: 60 rows of 11 + 3 numbers, SHA-256 ")
    assert line.endswith(", not one of D4RL's")
    digest = line.split("SHA-256 ")[1].partition(",")[0]
    monkeypatch.setitem(checksums.KNOWN, "hopper_medium-v2.hdf5", digest)
    assert run("verify", path)[0].endswith("which is D4RL's hopper-medium-v2")
    path = path.rename(path.with_name("hopper_medium-v2.hdf5"))
    assert run("verify", path)[0].endswith("which is D4RL's hopper-medium-v2")
    with h5py.File(path, "a") as file:
        file["rewards"][0] += 1
    assert ended(datasets.main, ["verify", str(path)]) == 2
    assert "is not D4RL's hopper-medium-v2: its SHA-256 is" in capsys.readouterr().err
    path = path.rename(path.with_name("hopper_medium.hdf5"))
    assert run("verify", path)[0].endswith("named like D4RL's hopper-medium-v0, whose bytes are not known")


def test_verify_checks_what_is_here_and_records_what_is_not_known(
    run: Callable[..., list[str]],
    write_hdf5: WriteHDF5,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    assert ended(datasets.main, ["verify"]) == 2
    assert f"none of D4RL's files is in {tmp_path}" in capsys.readouterr().err
    path = write_hdf5().rename(tmp_path / "hopper_medium.hdf5")
    (line,) = run("verify")
    assert line.endswith("named like D4RL's hopper-medium-v0, whose bytes are not known")
    assert not (tmp_path / "SHA256SUMS").exists()

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (
        run("verify", "hopper-medium-v0", "--record")[-1] == f"1 recorded in {tmp_path / 'SHA256SUMS'}, 0 known before"
    )
    assert (tmp_path / "SHA256SUMS").read_text() == f"{digest}  hopper_medium.hdf5\n"
    assert run("verify", path)[0].endswith("as recorded for D4RL's hopper-medium-v0")
    assert run("verify", "--record")[-1].startswith("0 recorded")

    other = write_hdf5(timeouts=None).rename(tmp_path / "hopper_expert.hdf5")
    with h5py.File(path, "a") as file:
        file["rewards"][0] += 1
    assert ended(datasets.main, ["verify", "--record"]) == 2
    out, error = capsys.readouterr()
    assert f"{path} is not the recorded file of hopper-medium-v0: its SHA-256 is" in error
    assert error.count("\n") == 1
    assert "1 recorded" in out, "one bad file keeps no other from being recorded"
    expected = [
        f"{digest}  hopper_medium.hdf5",
        f"{hashlib.sha256(other.read_bytes()).hexdigest()}  hopper_expert.hdf5",
    ]
    assert sorted((tmp_path / "SHA256SUMS").read_text().splitlines()) == sorted(expected)


def test_only_what_can_be_d4rls_is_recorded(
    write_hdf5: WriteHDF5, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    path = write_hdf5()
    assert ended(datasets.main, ["verify", str(path), "--record"]) == 2
    assert f"cannot record {path}: name files as D4RL names its own" in capsys.readouterr().err
    path = path.rename(tmp_path / "ant_expert.hdf5")
    assert ended(datasets.main, ["verify", str(path), "--record"]) == 2
    assert "is not D4RL's ant-expert-v0: the file has states and actions of sizes (11, 3)" in capsys.readouterr().err
    assert not (tmp_path / "SHA256SUMS").exists()


def test_download_prints_where_the_file_is(
    run: Callable[..., list[str]], write_hdf5: WriteHDF5, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    path = write_hdf5().rename(tmp_path / "hopper_medium-v2.hdf5")
    assert run("download", "hopper-medium-v2") == [str(path)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND; --help explains"),
        (["frob"], "invalid choice: 'frob'"),
        (["show"], "the following arguments are required: ID"),
        (["show", "hopper-medum-v2"], "unknown dataset 'hopper-medum-v2'; nearest: hopper-medium-v2"),
        (["show", "mini/hopper-medium-expert", "--png", "/dev/null/x.png"], "/dev/null"),
        (["verify", "none.hdf5"], "no dataset at none.hdf5"),
        (["download", "hopper-medium-v2"], "cannot download 'hopper-medium-v2' (its host cannot be reached)"),
        (["download", "mini/hopper-medium-expert"], "is not hosted anywhere"),
        (["download", "minari:nothing"], "is no name of a dataset"),
    ],
)
def test_errors_are_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(datasets.main, arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_returns_of_no_episode_are_not_drawn(write_hdf5: WriteHDF5, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_hdf5(terminals=np.zeros(60), timeouts=np.zeros(60))
    assert ended(datasets.main, ["show", str(path), "--png"]) == 2
    assert "no terminal and no time limit ends an episode" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_command_runs_and_its_reader_may_leave() -> None:
    command = [sys.executable, "-m", "shared", "datasets", "list"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
