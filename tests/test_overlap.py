"""Evaluation beside the training: what a run counts and writes; and the twins, on two simulated devices."""

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

from shared import jax_side, runs
from shared.runs import Run
from shared.task import load_task
from tests.test_runs import Config, push, rows

ROOT = Path(__file__).resolve().parent.parent
# Seconds until a test gives up what it waits for
PATIENCE = 30.0


def test_the_twins_on_two_devices() -> None:
    """The tests of `tests/on_two_devices.py`, in a process of their own: JAX counts a CPU's devices once."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/on_two_devices.py"]
    # The devices, and programs that are soon compiled
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_device_alone_trains_and_evaluates(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does one that JAX was told to use alone."""
    network = {"kernel": jax.device_put(np.zeros(3), jax.devices("cpu")[-1])}
    assert jax_side._idle_cpu(network) is None

    def without_the_cpu(backend: str) -> list[jax.Device]:
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(jax, "devices", without_the_cpu)
    assert jax_side._idle_cpu(network) is None


# ---- a run ---------------------------------------------------------------------------------------------------------


class Loss:
    """A number that the device has when it is read."""

    def __init__(self, read: Callable[[], Any]) -> None:
        """`read` is told."""
        self._read = read

    def __float__(self) -> float:
        self._read()
        return 0.5


@pytest.fixture
def config(write_hdf5: Callable[..., Path], tmp_path: Path) -> Config:
    """A run of twenty updates on a small dataset."""
    return Config(str(write_hdf5()), str(tmp_path / "runs"), max_timesteps=20)


def until(condition: Callable[[], bool]) -> None:
    """Waits for it."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_only_what_is_waited_for_counts_as_evaluating(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an evaluation takes while the device trains is no time of its own; what it takes after that is."""
    clock, trained = [100.0], threading.Event()
    monkeypatch.setattr(runs.time, "perf_counter", lambda: clock[0])

    def spend(seconds: float) -> None:
        clock[0] += seconds

    def train() -> None:
        spend(54)
        trained.set()

    def policy(observations: np.ndarray) -> np.ndarray:
        assert trained.wait(PATIENCE)
        until(lambda: waited or not run._pending)
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
        until(lambda: run._pending[0].outcome.args[0].done())
        run.log(30, {"loss": Loss(lambda: spend(10))})
    seconds = run.result["seconds"]
    assert (seconds["total"], seconds["training"], seconds["evaluating"]) == (71, 65, 6)


class Terminal(io.StringIO):
    """A stream on which there is a bar."""

    def isatty(self) -> bool:
        """It says so."""
        return True


def test_the_bar_shows_both(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is trained and what is evaluated; its time, hence its rate, is that of training alone."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Run(config, load_task(config), "cql", "jax") as run:
        begin = time.perf_counter()
        run.advance(10)
        run.evaluate(10, push, beside=True)
        assert re.search(r"10/20 .* evaluating 10\]", terminal.getvalue().rpartition("\r")[2])
        run.log(20, {"loss": Loss(lambda: time.sleep(1))})
        assert run._bar.format_dict["elapsed"] > 1
        run.evaluate(15, lambda observations: time.sleep(0.2) or push(observations))
        assert run._evaluating > 2
        assert run._bar.format_dict["elapsed"] < time.perf_counter() - begin - run._evaluating + 1
        assert not run._bar.postfix


def test_rows_come_in_the_order_in_which_they_were_asked_for(config: Config) -> None:
    """Two evaluations after one update, before what was trained beside them; none is left at the end."""
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
