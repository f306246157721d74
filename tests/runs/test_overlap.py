"""Evaluation during training: what a run counts and writes; and the twins, on two simulated devices."""

import dataclasses
import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from shared.frameworks import jax_side
from shared.runs.run import Run
from shared.runs.task import load_task
from tests.runs.test_runs import Config, push, rows

ROOT = Path(__file__).resolve().parents[2]
# Seconds after which a test stops waiting
PATIENCE = 30.0


@pytest.mark.thorough
def test_the_twins_on_two_devices() -> None:
    """Runs `tests/runs/test_background.py` in a process of its own, because JAX counts a CPU's devices only once."""
    options = ["-q", "-m", "", "-p", "no:cacheprovider", "--timeout=240"]
    command = [sys.executable, "-m", "pytest", *options, "tests/runs/test_background.py"]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^6 passed, 4 skipped", done.stdout, re.MULTILINE)


def test_without_a_cpu_training_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """If JAX may use only a GPU, it evaluates there in turn, because parallel work would queue behind the training."""
    asked = []

    class Asked:
        def evaluate(self, step: int, policy: Any, prompt: float | None, beside: bool) -> None:
            asked.append((policy(2.0), beside))

    def without_the_cpu(backend: str) -> list[jax.Device]:
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(jax, "devices", without_the_cpu)
    jax_side.evaluate(Asked(), 10, lambda network, observations: network * observations, 3.0)
    assert asked == [(6.0, False)]


# ---- a run ---------------------------------------------------------------------------------------------------------


class Loss:
    """A number that the device has computed when it is read, or earlier if it says so."""

    def __init__(self, read: Callable[[], Any], is_ready: Callable[[], bool] = lambda: True) -> None:
        """`read` is called when the number is read."""
        self._read, self.is_ready = read, is_ready

    def __float__(self) -> float:
        self._read()
        return 0.5


@pytest.fixture
def config(write_hdf5: Callable[..., Path], tmp_path: Path) -> Config:
    """The settings of a run of twenty updates on a small dataset."""
    return Config(env=str(write_hdf5()), runs_path=str(tmp_path / "runs"), max_timesteps=20)


def until(condition: Callable[[], bool]) -> None:
    """Waits until the condition is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_only_what_is_waited_for_counts_as_evaluating(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an evaluation does not count while the device trains, only the time that it takes afterwards."""
    clock, trained = [100.0], threading.Event()
    monkeypatch.setattr("shared.runs.progress.time.perf_counter", lambda: clock[0])

    def spend(seconds: float) -> None:
        clock[0] += seconds

    def train() -> None:
        spend(54)
        trained.set()

    def policy(observations: np.ndarray) -> np.ndarray:
        assert trained.wait(PATIENCE)
        until(lambda: waited or not run._background.pending)
        if not waited:
            spend(6)
            waited.append(True)
        return push(observations)

    waited = []

    with Run(dataclasses.replace(config, max_timesteps=40), load_task(config), "cql", "jax") as run:
        spend(1)
        run.advance(10)
        run.evaluate(10, policy, beside=True)
        run.log(20, {"loss": Loss(train)})
        run.evaluate(20, push, beside=True)
        until(lambda: run._background.pending[0].evaluation.done())
        run.log(30, {"loss": Loss(lambda: spend(10))})
    seconds = run.result["seconds"]
    assert (seconds["total"], seconds["training"], seconds["evaluating"]) == (71, 65, 6)


def test_an_outcome_is_told_while_the_device_trains(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as it is known, not only at the interval's end; its row has the rate of the training before it."""
    clock, written = [100.0], []
    monkeypatch.setattr("shared.runs.progress.time.perf_counter", lambda: clock[0])

    def look() -> None:
        written.append(len(rows(run)))

    with Run(dataclasses.replace(config, max_timesteps=30), load_task(config), "dt", "jax") as run:
        clock[0] += 5
        run.advance(10)
        for prompt in (2.0, 1.0):
            run.evaluate(10, push, prompt, beside=True)
        clock[0] += 1
        run.log(20, {"loss": Loss(look, is_ready=look)})
        run.advance(10)
    assert (written[0], written[-1]) == (0, 2)
    assert [row["updates_per_second"] for row in rows(run)] == [2, 2, 2]
    assert run.result["updates_per_second"] == 10
    assert run.result["seconds"]["evaluating"] == 0


class Terminal(io.StringIO):
    """A stream on which a bar is shown."""

    def isatty(self) -> bool:
        """Always true."""
        return True


@pytest.mark.thorough
def test_the_bar_shows_both(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress of training and of evaluation; its time, and hence its rate, is that of training alone."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Run(config, load_task(config), "cql", "jax") as run:
        begin = time.perf_counter()
        run.advance(10)
        run.evaluate(10, push, beside=True)
        assert re.search(r"10/20 .* evaluating 10\]", terminal.getvalue().rpartition("\r")[2])
        run.log(20, {"loss": Loss(lambda: time.sleep(1))})
        assert run._progress.bar.format_dict["elapsed"] > 1
        run.evaluate(15, lambda observations: time.sleep(0.2) or push(observations))
        assert run._progress.evaluating > 2
        assert run._progress.bar.format_dict["elapsed"] < time.perf_counter() - begin - run._progress.evaluating + 1
        assert not run._progress.bar.postfix


def test_rows_come_in_the_order_in_which_they_were_asked_for(config: Config) -> None:
    """Two evaluations after one update, before the training alongside; none is left at the end."""
    with Run(config, load_task(config), "dt", "jax") as run:
        for step in (10, 20):
            run.advance(10)
            run.log(step, {"loss": 0.5})
            for prompt in (2.0, 1.0):
                run.evaluate(step, lambda observations, prompt=prompt: push(observations) * prompt, prompt, beside=True)
            assert len(rows(run)) == (1 if step == 10 else 6)
    kinds = ["loss", "eval/2.0_returns", "eval/1.0_returns"] * 2
    assert [(row["step"], kind in row) for row, kind in zip(rows(run), kinds, strict=True)] == [
        (step, True) for step in (10, 10, 10, 20, 20, 20)
    ]
    assert "returns" in rows(run)[1]
    assert "returns" not in rows(run)[2]
