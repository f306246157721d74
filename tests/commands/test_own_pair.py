"""Commands know a pair of the user's own by its name, in the folder of its two files."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from port_checker import new
from shared.__main__ import main
from shared.frameworks.twins import FRAMEWORKS, load_twin

NAME = "own_bc"
SHORT = ["--env", "mini/pendulum-replay", "--max_timesteps", "4", "--eval_freq", "4", "--n_episodes", "1"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with both files of a pair."""
    new.write_all(new.project(tmp_path, "any_percent_bc", NAME))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    load_twin.cache_clear()
    for framework in FRAMEWORKS:
        sys.modules.pop(f"{NAME}_{framework}", None)


@pytest.mark.thorough
def test_a_run_of_one_s_own_pair_is_played_exported_and_converted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run in JAX, so that all of these read both files."""
    assert main(["train", "jax", NAME, *SHORT]) == 0
    (run,) = (project / "runs").iterdir()
    capsys.readouterr()
    assert main(["play", str(run), "--episodes", "1"]) == 0
    assert "episode 1: return " in capsys.readouterr().out
    assert main(["export", str(run), "--format", "npz"]) == 0
    assert main(["convert", str(run), "--to", "torch"]) == 0
    assert (run / "checkpoint.pt").is_file()


def test_elsewhere_its_files_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "jax", NAME]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith(f"if it is your own, call this in the folder of {NAME}_jax.py\n")
