"""Ctrl-C and SIGTERM, as users and job schedulers send them: an immediate answer, everything saved, its own status."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.runs.stopped_runs import only_run, read, rows

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
LONG = ["--max_timesteps", "30000", "--n_episodes", "1", "--device", "cpu"]
# Seconds until a user gets an answer; a loaded machine may be slow, but an interval takes far longer.
AT_ONCE = 5.0
# Seconds until a run is over after a signal, whatever it is doing
IN_ALL = 10.0


class Started:
    """A run in a separate process, up to the creation of its folder."""

    def __init__(self, side: str, folder: Path, *flags: str) -> None:
        script = ROOT / f"corl_{side}" / "td3_bc.py"
        command = [sys.executable, "-u", str(script), *LONG, *flags, "--runs_path", str(folder / "runs")]
        self._programs = folder / "programs"
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(self._programs)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        while "run folder" not in self.process.stdout.readline():
            assert self.process.poll() is None, self.process.stderr.read()
        self.run = only_run(folder / "runs")

    def wait_for_xla(self) -> None:
        """Waits until the program of an interval is compiled and stored, and therefore running."""
        while not list(self._programs.glob("jit_train_interval*")):
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.05)
        time.sleep(0.3)

    def answer(self, number: int) -> str:
        """Sends a signal; returns the line that is printed in response."""
        begin = time.monotonic()
        self.process.send_signal(number)
        line = self.process.stderr.readline()
        assert time.monotonic() - begin < AT_ONCE
        return line

    def end(self) -> tuple[int, str]:
        """The exit status, and the last line of standard error."""
        # Not `communicate`: it reads past what `readline` has already taken into its buffer.
        lines = self.process.stderr.read().splitlines()
        return self.process.wait(timeout=240), lines[-1]


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Makes the tests' runs react to Ctrl-C, even if the tests themselves are a shell's background job."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., Started]:
    """Starts runs, and leaves none running."""
    begun = []

    def start(side: str, *flags: str) -> Started:
        begun.append(Started(side, tmp_path, *flags))
        return begun[-1]

    yield start
    for each in begun:
        each.process.kill()
        each.process.wait()


def test_pytorch_stops_after_the_update(started: Callable[..., Started]) -> None:
    """In the middle of an interval: what was measured since the last evaluation is saved too."""
    run = started("torch")
    assert "first update" in run.process.stdout.readline()
    time.sleep(0.5)
    assert run.answer(signal.SIGINT).startswith("SIGINT: stopping after the current update")
    code, last = run.end()
    assert code == 130
    (path,) = (run.run / "checkpoints").iterdir()
    assert last == f"stopped by SIGINT; last checkpoint: {path}; --resume {run.run} continues from it"
    content = read(path)
    assert content["step"] == content["total_it"] == len(content["history"]["critic_loss"]) < 5000
    assert rows(run.run) == []


def test_jax_answers_at_once_and_stops_within_the_interval(started: Callable[..., Started]) -> None:
    """XLA computes in the meantime, and Python's own handlers wait for it; none of its calls is long."""
    run = started("jax", "--eval_freq", "30000")
    run.wait_for_xla()
    assert run.answer(signal.SIGTERM).startswith("SIGTERM: stopping after the current update")
    begin = time.monotonic()
    code, last = run.end()
    assert time.monotonic() - begin < IN_ALL
    assert code == 143
    (path,) = (run.run / "checkpoints").iterdir()
    assert 0 < read(path)["step"] < 30000
    assert last == f"stopped by SIGTERM; last checkpoint: {path}; --resume {run.run} continues from it"


def test_a_second_signal_stops_at_once(started: Callable[..., Started]) -> None:
    """Within an interval of minutes, without saving; the line names the last checkpoint."""
    run = started("jax", "--eval_freq", "30000")
    run.wait_for_xla()
    assert "again to quit without saving" in run.answer(signal.SIGINT)
    assert run.answer(signal.SIGINT) == "SIGINT again: stopped at once; nothing was saved yet\n"
    begin = time.monotonic()
    assert run.process.wait(timeout=60) == 130
    assert time.monotonic() - begin < AT_ONCE
    assert rows(run.run) == []


def test_what_is_ignored_stays_ignored(started: Callable[..., Started]) -> None:
    """A shell's background job ignores Ctrl-C."""
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = started("torch", "--max_timesteps", "200", "--eval_freq", "100")
    finally:
        signal.signal(signal.SIGINT, old)
    assert "first update" in run.process.stdout.readline()
    run.process.send_signal(signal.SIGINT)
    run.process.communicate(timeout=240)
    assert run.process.returncode == 0
    assert (run.run / "result.json").exists()


def test_before_a_run_begins_it_ends_at_once(tmp_path: Path) -> None:
    """For example while data are read."""
    command = [sys.executable, "-u", str(ROOT / "corl_torch" / "td3_bc.py"), *LONG, "--runs_path", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert "settings of" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=IN_ALL)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("stopped by SIGINT; nothing was saved yet")


# The third step of this environment takes half a minute.
SLOW = """
import sys, time
import gymnasium
from shared.envs import registry
from shared.frameworks.twins import load_twin
from shared.runs.configs import cli

class Slow(registry.D4RLHopper):
    steps = 0

    def step(self, action):
        Slow.steps += 1
        if Slow.steps == 3:
            print("asleep", flush=True)
            time.sleep(30)
        return super().step(action)

gymnasium.register("test/Slow-v0", entry_point=Slow, max_episode_steps=100)
twin = load_twin(sys.argv[1], "td3_bc")
cli(twin.train, twin.TrainConfig, "td3_bc", sys.argv[2:])
"""


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_an_evaluation_that_hangs_is_left(side: str, tmp_path: Path) -> None:
    """The training before it is saved; in JAX the training alongside continues in the meantime."""
    given = ["--max_timesteps", "60", "--eval_freq", "20", "--n_episodes", "1", "--device", "cpu"]
    command = [sys.executable, "-u", "-c", SLOW, side, *given, "--eval_env", "test/Slow-v0"]
    process = subprocess.Popen(
        [*command, "--runs_path", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    while "asleep" not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - begin < IN_ALL, errors
    assert process.returncode == 143, errors
    run = only_run(tmp_path)
    assert list((run / "checkpoints").glob("step_20.*"))
    assert f"--resume {run} continues from it" in errors
