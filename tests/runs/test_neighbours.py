"""Runs that share a folder with other processes and their leftovers: none is lost, and none stops another."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.errors import InputError, Stopped
from shared.runs import record
from shared.runs.loggers import Loggers
from tests.runs.stopped_runs import only_run, rows, train
from tests.runs.test_damage import full_disk
from tests.runs.test_resume import evaluation_fails, stop_after

pytestmark = pytest.mark.usefixtures("in_haste")


def auto(folder: Path, side: str = "torch", **settings: Any) -> Path:
    """A short run that resumes any run it can; returns its folder."""
    return train(side, "td3_bc", folder, resume="auto", **settings)


# ---- two processes -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_begins_is_nobody_elses(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings already exist, and Weights & Biases is still starting: another `auto` leaves it alone."""
    others, start = [], Loggers.start

    def slow(loggers: Loggers, *args: Any) -> None:
        if not others:
            others.append(None)
            others.append(auto(tmp_path))
            if fails:
                raise InputError("no network")
        start(loggers, *args)

    monkeypatch.setattr(Loggers, "start", slow)
    if fails:
        with pytest.raises(InputError, match="no network"):
            auto(tmp_path)
        assert only_run(tmp_path) == others[1]
    else:
        run = auto(tmp_path)
        assert run != others[1]
        assert [row["step"] for row in rows(run)] == [row["step"] for row in rows(others[1])]
    assert {path.name for path in others[1].iterdir()} >= {"config.yaml", "metrics.jsonl", "result.json"}


def test_a_run_that_is_finished_meanwhile_is_not_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes it after its settings were read, but before it is locked."""
    with evaluation_fails(1), pytest.raises(ZeroDivisionError):
        train("torch", "td3_bc", tmp_path)
    run = only_run(tmp_path)
    opened, seen = record.resuming.MetricsFile, []

    def meanwhile(path: Path) -> Any:
        if not seen:
            seen.append(path)
            train("torch", "td3_bc", tmp_path, resume=str(run))
            seen.append(rows(run))
        return opened(path)

    monkeypatch.setattr(record.resuming, "MetricsFile", meanwhile)
    assert auto(tmp_path) != run
    assert rows(run) == seen[1]
    with pytest.raises(InputError, match="is finished"):
        train("torch", "td3_bc", tmp_path, resume=str(run))


# ---- leftovers of others -------------------------------------------------------------------------------------------


def nested(run: Path) -> None:
    """Nests deeper than any program should go."""
    (run / "config.yaml").write_text("seed: " + "[" * 5000)


def nested_in_blocks(run: Path) -> None:
    """Nests as deeply with lines."""
    (run / "config.yaml").write_text("".join(" " * depth + "a:\n" for depth in range(2000)))


def aliases(run: Path) -> None:
    """A few lines that expand to more text than there is memory."""
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(30)]
    (run / "config.yaml").write_text("\n".join([*lines, "seed: *a29"]))


def pipe(run: Path) -> None:
    """Nobody writes into it, so reading it would block."""
    (run / "config.yaml").unlink()
    os.mkfifo(run / "config.yaml")


def binary(run: Path) -> None:
    """Bytes that are not text."""
    (run / "config.yaml").write_bytes(bytes(range(256)))


def numbers(run: Path) -> None:
    """Lines of JSON that are not rows."""
    (run / "metrics.jsonl").write_text("1\n2\n" * 10_000)


def other_rows(run: Path) -> None:
    """Rows that are not a run's."""
    (run / "metrics.jsonl").write_text('{"returns": "x"}\n' * 10_000)


def unwritable(run: Path) -> None:
    """A folder instead of a file that a run could write its metrics to."""
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()


def no_checkpoint(run: Path) -> None:
    """Damages its only checkpoint."""
    for path in (run / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-100])


LEFT = [nested, nested_in_blocks, aliases, pipe, binary, numbers, other_rows, unwritable, no_checkpoint]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped at its seventh update."""
    folder = tmp_path_factory.mktemp("stopped")
    with stop_after(7), pytest.raises(Stopped):
        train("torch", "td3_bc", folder)
    return only_run(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("leave", LEFT, ids=lambda leave: leave.__name__)
def test_auto_passes_over_what_it_cannot_use(
    leave: Callable[[Path], None], stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line reports it, and the previous run continues."""
    begin = stopped.name[:-8]
    good, bad = (shutil.copytree(stopped, tmp_path / f"{begin}{digits}") for digits in ("00000000", "11111111"))
    leave(bad)
    os.utime(bad / "config.yaml", (2**33, 2**33))
    capsys.readouterr()
    assert auto(tmp_path) == good
    told = [line for line in capsys.readouterr().err.splitlines() if str(bad) in line]
    assert len(told) == 1
    assert "is passed over" in told[0]


# ---- a disk without room, a folder that is somebody else's -----------------------------------------------------------


def test_no_room_for_a_new_run(tmp_path: Path) -> None:
    """One line says so, and nothing is left."""
    with full_disk(0), pytest.raises(InputError, match=r"cannot make .* \(File too large\): make room, or set runs_pa"):
        train("torch", "td3_bc", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_copies_that_cannot_be_written_are_refused_at_the_start(tmp_path: Path) -> None:
    """Before the first update, with the name of their own folder, for new runs and for resumed ones."""
    with stop_after(7), pytest.raises(Stopped):
        train("torch", "td3_bc", tmp_path / "runs")
    (tmp_path / "file").touch()
    copies = str(tmp_path / "file" / "models")
    for resume in ("", "auto"):
        told = r"cannot write .*file/models/.* \(Not a directory\): set checkpoints_path to a folder of yours"
        with pytest.raises(InputError, match=told):
            train("torch", "td3_bc", tmp_path / "runs", checkpoints_path=copies, resume=resume)
    only_run(tmp_path / "runs")


@pytest.mark.thorough
def test_copies_that_do_not_fit_end_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run's own files are whole, so it ends with its result."""
    with pytest.MonkeyPatch.context() as patch:
        write = record.write_atomically

        def full(path: Path, content: bytes) -> None:
            if path.is_relative_to(tmp_path / "copies"):
                raise OSError(28, "No space left on device", str(path))
            write(path, content)

        patch.setattr("shared.frameworks.torch_checkpoints.write_atomically", full)
        run = train("torch", "td3_bc", tmp_path / "runs", checkpoints_path=str(tmp_path / "copies"))
    assert (run / "result.json").exists()
    told = [line for line in capsys.readouterr().err.splitlines() if "No space left" in line]
    assert len(told) == 3
    assert all(str(tmp_path / "copies") in line for line in told)
