"""A full disk, a missing permission, a damaged file, a loss that diverges: nothing that was saved is lost."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from corl_jax import td3_bc as jax_td3_bc
from corl_torch import td3_bc
from shared.data.experience import Rows, load_rows
from shared.errors import InputError, RunError, Stopped
from shared.files import write_atomically
from shared.frameworks import jax_checkpoints, torch_checkpoints
from shared.runs.configs import cli
from shared.runs.metrics import MetricsFile
from tests.runs.stopped_runs import assert_same_bits, last_checkpoint, only_run, read, rows, train
from tests.runs.test_resume import SIDES, evaluation_fails, stop_after

pytestmark = pytest.mark.usefixtures("in_haste")

MEGABYTE = 1_000_000


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Lets no file of this process grow beyond this many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal that would end a process here.
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Prevents everybody from writing there; even root becomes another user for the time being."""
    user = os.geteuid()
    folder.chmod(0o500)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o700)


# ---- a full disk ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("side", SIDES)
def test_a_run_on_a_full_disk_says_so_and_loses_nothing(
    side: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trains on, tries again, and ends with an error and no result; with room again, it ends with the same bits."""
    reference = train(side, "td3_bc", tmp_path / "whole")
    folder = tmp_path / "cut"
    with stop_after(4), pytest.raises(Stopped):
        train(side, "td3_bc", folder)
    run = only_run(folder)
    before = {path: path.read_bytes() for path in (run / "checkpoints").iterdir()}
    capsys.readouterr()
    with full_disk(MEGABYTE), pytest.raises(RunError, match=r"cannot be written \(File too large\); last ch") as end:
        train(side, "td3_bc", folder, resume=str(run))
    assert f"--resume {run} continues from it" in str(end.value)
    assert "\n" not in str(end.value)
    told = capsys.readouterr().err.splitlines()
    assert len([line for line in told if "(File too large)" in line and "cannot save" in line]) == 2
    assert {path: path.read_bytes() for path in (run / "checkpoints").iterdir()} == before
    assert not list(run.rglob("*.partial"))
    assert not (run / "result.json").exists()
    assert train(side, "td3_bc", folder, resume=str(run)) == run
    assert_same_bits(run, reference)


@contextmanager
def full_at_save(number: int) -> Iterator[None]:
    """Fills the disk during the save with this number, from 1, of TD3+BC in PyTorch."""
    save, seen = td3_bc.save, []

    def save_on_it(*args: Any, **kwargs: Any) -> None:
        seen.append(args)
        with full_disk(MEGABYTE if len(seen) == number else resource.RLIM_INFINITY):
            save(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(td3_bc, "save", save_on_it)
        yield


def test_the_last_checkpoint_is_not_replaced_by_an_older_one(tmp_path: Path) -> None:
    """The run's end is an error, even if there is room again by then."""
    with full_at_save(3), pytest.raises(RunError, match=r"\(File too large\); last checkpoint: .*step_8"):
        train("torch", "td3_bc", tmp_path)
    run = only_run(tmp_path)
    assert not (run / "result.json").exists()
    assert not (run / "checkpoint.pt").exists()


def test_a_disk_that_was_full_for_a_while_costs_nothing(tmp_path: Path) -> None:
    """The next save succeeds, so the run ends normally."""
    with full_at_save(1):
        run = train("torch", "td3_bc", tmp_path)
    assert [path.stem for path in sorted((run / "checkpoints").iterdir())] == ["step_12", "step_8"]
    assert last_checkpoint(run).exists()


def test_rows_wait_for_room(tmp_path: Path) -> None:
    """Entire rows or parts of them: when there is room again, all rows are there, once and in order."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.write({"step": 1})
    with full_disk(metrics.size + 5):
        for step in (2, 3):
            with pytest.raises(OSError, match="too large"):
                metrics.write({"step": step})
        with pytest.raises(OSError, match="too large"):
            metrics.sync()
    metrics.write({"step": 4})
    assert metrics.size == (tmp_path / "metrics.jsonl").stat().st_size
    assert metrics.rows(metrics.size) == [{"step": step} for step in range(1, 5)]
    metrics.close()


def test_a_failed_write_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"older")
    with full_disk(10), pytest.raises(OSError, match="too large"):
        write_atomically(tmp_path / "file", bytes(100))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"older"


# ---- permissions ---------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with evaluation_fails(1), pytest.raises(ZeroDivisionError):
        train("torch", "td3_bc", tmp_path)
    run = only_run(tmp_path)
    saved = {path: path.read_bytes() for path in (run / "checkpoints").iterdir()}
    (run / "checkpoints").chmod(0o500)
    save = td3_bc.save

    def forbidden(trainer: Any, path: Path, **facts: Any) -> None:
        with read_only(path.parent):
            save(trainer, path, **facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(td3_bc, "save", forbidden)
        with pytest.raises(RunError, match=r"cannot be written \(Permission denied\); last checkpoint: .*step_4"):
            train("torch", "td3_bc", tmp_path, resume=str(run))
    assert "cannot save" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (run / "checkpoints").iterdir()} == saved


def test_a_run_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    with stop_after(1), pytest.raises(Stopped):
        train("torch", "td3_bc", tmp_path)
    run = only_run(tmp_path)
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    with pytest.raises(InputError, match=r"cannot continue .* \(Is a directory\): make it writable"):
        train("torch", "td3_bc", tmp_path, resume=str(run))


# ---- damaged files -------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """Flips one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Removes the second half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    """Removes everything."""
    path.write_bytes(b"")


FAULTS = [flip, cut, empty]


@pytest.mark.parametrize("side", SIDES)
def test_a_damaged_checkpoint_is_passed_over(side: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However it was damaged, the previous checkpoint is used, as a line says, and the end is the same."""
    reference = train(side, "td3_bc", tmp_path / "whole")
    folder = tmp_path / "cut"
    with evaluation_fails(2), pytest.raises(ZeroDivisionError):
        train(side, "td3_bc", folder)
    run = only_run(folder)
    (last,) = (run / "checkpoints").glob("step_8.*")
    content = last.read_bytes()
    for fault in FAULTS:
        last.write_bytes(content)
        fault(last)
        capsys.readouterr()
        with evaluation_fails(1), pytest.raises(ZeroDivisionError):
            train(side, "td3_bc", folder, resume=str(run))
        (line,) = [line for line in capsys.readouterr().err.splitlines() if str(last) in line]
        assert f"going on from {last.with_stem('step_4')} instead" in line
        aside = last.with_name(last.name + ".aside")
        assert aside.exists()
        assert not last.exists()
    train(side, "td3_bc", folder, resume=str(run))
    assert_same_bits(run, reference)


def test_damaged_experience_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint without the steps that it learned from does not count."""
    reference = train("torch", "sac", tmp_path / "whole", random_steps=3)
    folder = tmp_path / "cut"
    with evaluation_fails(2), pytest.raises(ZeroDivisionError):
        train("torch", "sac", folder, random_steps=3)
    run = only_run(folder)
    flip(run / "checkpoints" / "experience_8.npz")
    capsys.readouterr()
    train("torch", "sac", folder, random_steps=3, resume=str(run))
    assert "going on from" in capsys.readouterr().err
    assert_same_bits(run, reference)
    for ours, theirs in zip(load_rows(run, 12, Rows), load_rows(reference, 12, Rows), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_without_a_whole_checkpoint_the_run_is_refused(tmp_path: Path) -> None:
    """It is not silently started again."""
    with stop_after(4), pytest.raises(Stopped):
        train("torch", "td3_bc", tmp_path)
    run = only_run(tmp_path)
    for path in (run / "checkpoints").iterdir():
        flip(path)
    with pytest.raises(InputError, match=r"no checkpoint of .* can be used \(.*damaged"):
        train("torch", "td3_bc", tmp_path, resume=str(run))
    assert list((run / "checkpoints").iterdir())


@pytest.mark.parametrize("side", SIDES)
def test_a_damaged_last_checkpoint_is_no_model(side: str, tmp_path: Path) -> None:
    """However it was damaged."""
    path = last_checkpoint(train(side, "td3_bc", tmp_path, max_timesteps=4))
    content = path.read_bytes()
    for fault in FAULTS:
        path.write_bytes(content)
        fault(path)
        with pytest.raises(InputError, match=r"is damaged|cannot be read"):
            train(side, "td3_bc", tmp_path, load_model=str(path))


def test_metrics_that_somebody_shortened_are_refused(tmp_path: Path) -> None:
    """The checkpoint's rows would be missing."""
    with stop_after(7), pytest.raises(Stopped):
        train("torch", "td3_bc", tmp_path)
    run = only_run(tmp_path)
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match="is not what the run wrote"):
        train("torch", "td3_bc", tmp_path, resume=str(run))


# ---- losses and states that are not finite -------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At that interval, with exit code 1 and one line with the metric, its step and the last good checkpoint.

    A weight too large for single precision makes the actor's loss infinite; the actor first learns in the second
    interval.
    """
    flags = "--alpha 1e39 --policy_freq 6 --max_timesteps 12 --eval_freq 4 --n_episodes 1 --batch_size 8 --device cpu"
    monkeypatch.setattr(sys, "argv", ["td3_bc.py", *flags.split(), "--runs_path", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        cli(td3_bc.train, td3_bc.TrainConfig, "td3_bc")
    assert end.value.code == 1
    run = only_run(tmp_path)
    (saved,) = (run / "checkpoints").iterdir()
    assert saved.stem == "step_4"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: actor_loss is ")
    assert f"at update 8; last checkpoint: {saved}; --resume {run} continues from it" in line
    assert [row["step"] for row in rows(run) if "diverged" in row] == [8]
    assert not (run / "result.json").exists()


def test_a_loss_that_xla_made_not_finite_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in JAX, planted in the result of an interval."""
    interval = jax_td3_bc.train_interval

    def broken(state: Any, key: Any, dataset: Any, start: int, *args: Any) -> Any:
        state, history = interval(state, key, dataset, start, *args)
        return state, [*history, {"critic_loss": jnp.asarray([jnp.nan if start == 4 else 0.0])}]

    monkeypatch.setattr(jax_td3_bc, "train_interval", broken)
    with pytest.raises(RunError, match=r"critic_loss is nan at update 8; last checkpoint: .*step_4"):
        train("jax", "td3_bc", tmp_path)


def test_a_state_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    """An update's losses are those before its step."""
    path = tmp_path / "checkpoint"
    parts = {"actor": {"net.0.weight": torch.tensor([1.0, torch.nan])}, "total_it": 3}
    with pytest.raises(RunError, match=r"actor.net.0.weight is not finite"):
        torch_checkpoints.save_checkpoint(path, "td3_bc", parts)
    with pytest.raises(RunError, match=r"history.critic_loss is not finite"):
        torch_checkpoints.save_checkpoint(path, "td3_bc", {"history": [{"critic_loss": torch.tensor(torch.inf)}]})
    with pytest.raises(RunError, match=r"'actor'.* is not finite"):
        jax_checkpoints.save_checkpoint(path, "td3_bc", {"actor": jnp.array([1.0, jnp.nan])}, 3)
    assert not path.exists()


@pytest.mark.parametrize("side", SIDES)
def test_a_run_whose_state_is_not_finite_names_it(side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted between the loss of an interval and its checkpoint."""
    twin = __import__(f"corl_{side}.td3_bc", fromlist=["train"])
    if side == "torch":
        update = twin.TD3_BC.update

        def broken(self: Any, batch: Any, noise: Any) -> Any:
            metrics = update(self, batch, noise)
            if self.total_it == 8:
                self.actor.net[0].weight.data[0, 0] = np.nan
            return metrics

        monkeypatch.setattr(twin.TD3_BC, "update", broken)
    else:
        interval = twin.train_interval

        def broken(state: Any, key: Any, dataset: Any, start: int, *args: Any) -> Any:
            state, history = interval(state, key, dataset, start, *args)
            return (jax.tree.map(lambda leaf: leaf * jnp.nan, state) if start == 4 else state), history

        monkeypatch.setattr(twin, "train_interval", broken)
    with pytest.raises(RunError, match=r"actor.* is not finite at update 8; last checkpoint: .*step_4"):
        train(side, "td3_bc", tmp_path)
    assert [path.stem for path in (only_run(tmp_path) / "checkpoints").iterdir()] == ["step_4"]
    assert read(next((only_run(tmp_path) / "checkpoints").iterdir()))["step"] == 4
