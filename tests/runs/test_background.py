"""Twins that evaluate while they train: on one device, and on two if `tests/runs/test_overlap.py` runs this file.

Of two simulated devices one trains and the other evaluates, like a GPU and a CPU.
"""

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corl_jax import any_percent_bc as bc
from shared.envs.evaluation import Evaluation, Evaluator
from shared.errors import Stopped
from shared.frameworks import jax_side
from shared.frameworks.twins import load_twin
from shared.runs.seeds import train_seeds
from tests.runs.stopped_runs import assert_same_bits, config, only_run, rows, train

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("in_haste")]

LAST = jax.devices("cpu")[-1]
# With prompts, and online. On one device the runs of BC below cover both, because the differences there are common to
# all: where a policy is, and what an interval has consumed.
TWINS = ["dt", "sac"] if len(jax.devices("cpu")) > 1 else ["sac"]
# `test_overlap.py` runs this file again on two devices. What an evaluation hears from outside does not depend on them.
once = pytest.mark.skipif(len(jax.devices("cpu")) > 1, reason="it runs in the process with one device")
EVERY, INTERVALS = 4, 3
# Seconds after which a test stops waiting
PATIENCE = 30.0


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """Hides every CPU that JAX could evaluate on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax_side, "_last_cpu", lambda: None)
        yield


def train_double(folder: Path, **settings: Any) -> Path:
    """A run of BC in double precision, which JAX sets per thread."""
    with jax.enable_x64(True):
        return train("jax", "any_percent_bc", folder, **settings)


@contextlib.contextmanager
def held(meanwhile: Callable[[int, Evaluator, Any], None] = lambda *_: None) -> Iterator[None]:
    """Delays each evaluation but the last in a new run of BC until the interval next to it was handed to the device.

    Args:
        meanwhile: Called then, in the thread that evaluates, with the evaluation's number from 1 and its arguments.
    """
    together, evaluate = bc.train_together, Evaluator.__call__
    handed, numbers = [threading.Event() for _ in range(INTERVALS)], itertools.count(1)

    def handing(*args: Any) -> Any:
        outcome = together(*args)
        handed[args[4] // EVERY].set()
        return outcome

    def holding(self: Evaluator, policy: Any) -> Evaluation:
        number = next(numbers)
        assert number == INTERVALS or handed[number].wait(PATIENCE), "the loop waits for its evaluation"
        meanwhile(number, self, policy)
        return evaluate(self, policy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bc, "train_together", handing)
        patch.setattr(Evaluator, "__call__", holding)
        yield


def checkpoints(run: Path) -> list[str]:
    """The names of the checkpoints that were kept."""
    return sorted(path.name for path in run.glob("checkpoints/*"))


def test_there_are_as_many_devices_as_xla_was_asked_for() -> None:
    """Two, if a process of its own was to have two."""
    asked = re.search(r"host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    assert len(jax.devices("cpu")) == (int(asked[1]) if asked else 1)


# ---- the same run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TWINS)
def test_a_run_is_what_it_is_in_turn(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files are bitwise equal and its output is the same, with one program for all evaluations."""
    twin = load_twin("jax", name)
    with in_turn():
        expected = train("jax", name, tmp_path, max_timesteps=8)
    printed = told(expected, capsys)
    run = train("jax", name, tmp_path, max_timesteps=8)
    assert_same_bits(run, expected)
    assert checkpoints(run) == checkpoints(expected)
    assert told(run, capsys) == printed
    # Each run has one for all its evaluations, the second for the thread's device.
    assert (twin.train_interval._cache_size(), twin.act._cache_size()) == (1, 2)


def told(run: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that a run has printed, except for its name and its times."""
    lines = capsys.readouterr().out.replace(str(run), "RUN").splitlines()
    return [line for line in lines if not line.startswith("first update")]


def test_seeds_are_what_they_are_in_turn(tmp_path: Path) -> None:
    """Two seeds, on all devices, each with its own evaluation while the interval of both runs."""
    settings = config("jax", "any_percent_bc", tmp_path, max_timesteps=8)
    with in_turn():
        expected = [run.folder for run in train_seeds(bc.train, settings, 2)]
    for ours, theirs in zip(train_seeds(bc.train, settings, 2), expected, strict=True):
        assert_same_bits(ours.folder, theirs)


def test_a_policy_answers_alike_in_every_thread() -> None:
    """Even if it creates arrays itself: device and precision are those of the thread that handed it over."""
    with jax.enable_x64(True):
        policy = jax_side._on(LAST, lambda network: jnp.zeros(()), None)
    with ThreadPoolExecutor() as pool:
        made = pool.submit(policy).result()
    assert (made.devices(), made.dtype) == ({LAST}, jnp.float64)


# ---- events during an evaluation -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of BC, evaluated in turn."""
    with in_turn():
        return train_double(tmp_path_factory.mktemp("reference"))


def test_the_next_interval_does_not_wait(reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread evaluates, on the last device, a copy of the state that the interval consumes."""
    evaluate, networks, seen = bc.evaluate, [], []

    def noting(*args: Any) -> None:
        networks.append(args[3])
        evaluate(*args)

    def look(number: int, evaluator: Evaluator, policy: Any) -> None:
        used_up = all(leaf.is_deleted() for leaf in jax.tree.leaves(networks[number - 1]))
        (device,) = policy(np.zeros((2, evaluator.state_dim), np.float32)).devices()
        seen.append((threading.current_thread() is threading.main_thread(), device, used_up))

    monkeypatch.setattr(bc, "evaluate", noting)
    with held(look):
        assert_same_bits(train_double(tmp_path), reference)
    assert seen == [(False, LAST, True)] * (INTERVALS - 1) + [(False, LAST, False)]


@once
@pytest.mark.parametrize("failing", [1, INTERVALS])
def test_an_environment_that_raises(
    failing: int, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run fails as it would in turn, and continues from the checkpoint before that evaluation."""

    def fail(number: int, *_: Any) -> None:
        if number == failing:
            raise ZeroDivisionError("the simulator")

    with held(fail), pytest.raises(ZeroDivisionError):
        train_double(tmp_path)
    run = only_run(tmp_path)
    last = run / "checkpoints" / f"step_{EVERY * failing}.msgpack"
    assert f"the run has failed; last checkpoint: {last}; --resume {run}" in capsys.readouterr().err
    assert [row["step"] for row in rows(run)] == [4, 4, 8, 8, 12, 12][: 2 * failing - 1]
    assert not (run / "result.json").exists()
    assert train_double(tmp_path, resume="auto") == run
    assert_same_bits(run, reference)


@once
def test_a_signal_ends_the_run_after_the_interval(reference: Path, tmp_path: Path) -> None:
    """The state trained during the evaluation is saved, and the evaluation is written before it."""

    def stop(number: int, *_: Any) -> None:
        if number == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with held(stop), pytest.raises(Stopped):
        train_double(tmp_path)
    run = only_run(tmp_path)
    assert checkpoints(run) == ["step_4.msgpack", "step_8.msgpack"]
    assert [row["step"] for row in rows(run)] == [4, 4, 8]
    assert train_double(tmp_path, resume="auto") == run
    assert_same_bits(run, reference)


@once
def test_a_signal_does_not_wait_for_the_last_evaluation(reference: Path, tmp_path: Path) -> None:
    """It ends without an outcome, and is repeated later."""
    left = []

    def stop(number: int, evaluator: Evaluator, policy: Any) -> None:
        if number == INTERVALS:
            os.kill(os.getpid(), signal.SIGTERM)
            end = time.monotonic() + PATIENCE
            while not evaluator._closed and time.monotonic() < end:
                time.sleep(0.01)
            left.append(evaluator._closed)

    with held(stop), pytest.raises(Stopped):
        train_double(tmp_path)
    run = only_run(tmp_path)
    assert left == [True]
    assert [row["step"] for row in rows(run)] == [4, 4, 8, 8, 12]
    assert train_double(tmp_path, resume="auto") == run
    assert_same_bits(run, reference)
