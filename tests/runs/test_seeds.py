"""Several seeds side by side: their turns, meetings and ends; and each equals its run alone."""

import dataclasses
import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from parity_tests.engine.interpreter import interpreted
from parity_tests.errors import errors
from parity_tests.ladder.scene import bundled_rows
from parity_tests.pairs import PAIRS
from shared.errors import InputError, RunError, Stopped
from shared.frameworks.jax_data import to_device
from shared.frameworks.twins import load_twin
from shared.runs import seeds
from shared.runs.checkpoints import Checkpoints
from shared.runs.configs import cli
from shared.runs.run import Run
from shared.runs.seeds import last_in_common, meet, once, train_seeds
from shared.runs.stopping import StopRequest
from shared.runs.task import load_task
from tests.runs.stopped_runs import assert_same_bits, config, last_checkpoint, read, rows, train

pytestmark = pytest.mark.usefixtures("in_haste")

ROOT = Path(__file__).resolve().parents[2]
# Examples of those that compute together: with a phase, updates in chunks, windows and dropout, rows of their own.
TOGETHER = ["td3_bc", "cql", "dt", "model_based/mopo"]
# In double precision. 2.3e-14 was measured; another machine's products may add in another order.
ROUNDING = 1e-11
SHORT = {"max_timesteps": 6, "eval_freq": 6, "n_episodes": 1, "batch_size": 8}
METRIC = "D4RL score over the last evaluations, 3 at most"


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings that `train_seeds` reads."""

    seed: int = 3
    resume: str = ""


def doubled(parts: list[int]) -> list[int]:
    """The results of a meeting."""
    return [2 * part for part in parts]


# ---- turns and meetings --------------------------------------------------------------------------------------------


def test_seeds_take_turns_and_meet() -> None:
    said = []

    def together(parts: list[int]) -> list[int]:
        said.append(f"meeting of {parts}")
        return doubled(parts)

    def train(config: Config) -> int:
        said.append(f"{seeds.label()}{seeds.count()}")
        answer = meet(0, config.seed, together)
        said.append(f"{seeds.label()}went on")
        return meet(1, answer, together)

    assert train_seeds(train, Config(), 2) == [12, 16]
    begin = ["seed 3: 2", "seed 4: 2", "meeting of [3, 4]"]
    assert said == [*begin, "seed 3: went on", "seed 4: went on", "meeting of [6, 8]"]
    assert (seeds.count(), seeds.label()) == (1, "")


def test_who_is_behind_goes_on_first() -> None:
    met = []

    def together(parts: list[tuple[int, int]]) -> list[None]:
        met.append(parts)
        return [None] * len(parts)

    def train(config: Config) -> None:
        for start in range(config.seed % 2, 3):
            meet(start, (config.seed, start), together)

    train_seeds(train, Config(seed=0), 2)
    assert met == [[(0, 0)], [(0, 1), (1, 1)], [(0, 2), (1, 2)]]


def test_what_all_share_is_made_once() -> None:
    thing, made = object(), []

    def make() -> list:
        made.append([])
        return made[-1]

    shared = train_seeds(lambda config: once(thing, make), Config(), 3)
    assert shared[0] is shared[1] is shared[2]
    assert once(thing, make) is not once(thing, make)
    assert len(made) == 3


def test_the_dataset_is_read_and_placed_once(tmp_path: Path) -> None:
    given = config("jax", "td3_bc", tmp_path)

    def train(config: Any) -> tuple[Any, Any]:
        task = load_task(config)
        task.evaluator.close()
        return task.dataset, to_device(task.dataset)

    (first, on_device), (second, also_there) = train_seeds(train, given, 2)
    assert first is second
    assert on_device is also_there


def test_one_seed_is_an_ordinary_run() -> None:
    assert train_seeds(lambda config: (config, seeds.count(), seeds.label()), Config(), 1) == [(Config(), 1, "")]


# ---- ends ----------------------------------------------------------------------------------------------------------


def test_a_seed_that_fails_leaves_the_others_alone(capsys: pytest.CaptureFixture[str]) -> None:
    ended = []

    def train(config: Config) -> None:
        meet(0, config.seed, doubled)
        if config.seed == 4:
            raise RunError("critic_loss is nan")
        ended.append(meet(1, config.seed, doubled))

    with pytest.raises(RunError, match="1 of 3 seeds failed, as said above: 4"):
        train_seeds(train, Config(), 3)
    assert ended == [6, 10]
    assert capsys.readouterr().err == "seed 4: critic_loss is nan\n"


@pytest.mark.parametrize("where", ["train", "together"])
def test_what_nobody_foresaw_ends_them_all(where: str) -> None:
    """Each of them in its own `with` block."""
    closed = []

    def together(parts: list[int]) -> list[int]:
        if where == "together":
            raise ZeroDivisionError
        return parts

    def train(config: Config) -> None:
        try:
            meet(0, config.seed, together)
            if config.seed == 4:
                raise ZeroDivisionError
            meet(1, config.seed, together)
        finally:
            closed.append(config.seed)

    with pytest.raises(ZeroDivisionError):
        train_seeds(train, Config(), 3)
    assert sorted(closed) == [3, 4, 5]


def test_settings_that_one_cannot_use_are_not_tried_by_the_next() -> None:
    begun = []

    def train(config: Config) -> None:
        begun.append(config.seed)
        raise InputError("no such dataset")

    with pytest.raises(InputError, match="no such dataset"):
        train_seeds(train, Config(), 3)
    assert begun == [3]


def test_a_signal_ends_them_all() -> None:
    """Each stops when its state is whole, none is started afterwards, and handlers are restored."""
    handler, heard = signal.getsignal(signal.SIGTERM), []

    def together(parts: list[int]) -> list[int]:
        signal.raise_signal(signal.SIGTERM)
        return parts

    def train(config: Config) -> None:
        with StopRequest(lambda: "saved") as stop:
            meet(0, config.seed, together)
            heard.append((config.seed, stop.number))
            stop.obey()

    with pytest.raises(Stopped, match="each seed keeps its checkpoints; --resume auto goes on") as stopped:
        train_seeds(train, Config(), 2)
    assert stopped.value.exit_status == 143
    assert heard == [(3, signal.SIGTERM), (4, signal.SIGTERM)]
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_signal_that_comes_when_all_is_done_changes_nothing() -> None:
    def train(config: Config) -> int:
        if config.seed == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            with StopRequest(lambda: "saved") as stop:
                while stop.number is None:
                    time.sleep(0.01)
        return config.seed

    assert train_seeds(train, Config(), 2) == [3, 4]


def test_a_request_hears_no_signal_of_before() -> None:
    """In a separate thread, once the main thread's request is over."""
    with StopRequest(lambda: "saved") as stop:
        signal.raise_signal(signal.SIGTERM)
    with ThreadPoolExecutor() as pool:
        later = pool.submit(StopRequest(lambda: "saved").__enter__).result()
    assert (stop.number, later.number) == (signal.SIGTERM, None)


def test_no_further_seed_begins_after_a_signal() -> None:
    """As when they train one after another."""
    begun = []

    def train(config: Config) -> None:
        begun.append(config.seed)
        os.kill(os.getpid(), signal.SIGTERM)
        with StopRequest(lambda: "saved") as stop:
            while stop.number is None:
                time.sleep(0.01)
            stop.obey()

    with pytest.raises(Stopped, match="each seed keeps its checkpoints"):
        train_seeds(train, Config(), 3)
    assert begun == [3]


@pytest.mark.parametrize(
    ("given", "number", "message"),
    [
        (Config(), 0, "--seeds must be between 1 and 4294967293 with seed 3"),
        (Config(seed=2**32 - 1), 2, "--seeds must be between 1 and 1 with seed 4294967295"),
        (Config(resume="runs/x"), 2, "write --resume auto, or leave --seeds out"),
    ],
)
def test_what_several_seeds_cannot_use(given: Config, number: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train_seeds(lambda config: pytest.fail("began"), given, number)


def test_summary_names_every_seed() -> None:
    results = [{"metric": "d4rl_normalized_score", "mean_of_last_3": score} for score in (80.0, 90.04)]
    scores = "80.0, 90.0; mean 85.0, standard deviation 7.1"
    assert seeds.summary(results) == f"2 seeds, {METRIC}: {scores}"


# ---- the twins -----------------------------------------------------------------------------------------------------


def all_seeds(side: str, name: str, folder: Path, number: int, **settings: Any) -> list[Path]:
    """Trains all seeds; returns their folders."""
    twin = load_twin(side, name)
    return [run.folder for run in train_seeds(twin.train, config(side, name, folder, **settings), number)]


def assert_alike(ours: Path, theirs: Path) -> None:
    """Checks that the train states in two runs' last checkpoints are equal up to rounding."""
    states = [jax.tree_util.tree_leaves_with_path(read(last_checkpoint(run))["state"]) for run in (ours, theirs)]
    named = [{jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in state} for state in states]
    apart = errors(*named)
    assert max(apart.values()) < ROUNDING, {name: value for name, value in apart.items() if value >= ROUNDING}
    assert [row["step"] for row in rows(ours)] == [row["step"] for row in rows(theirs)]


@pytest.fixture
def float64() -> Iterator[None]:
    """In every thread, unlike `jax.enable_x64`, which is for one."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.usefixtures("float64")
@pytest.mark.thorough
@pytest.mark.parametrize("name", TOGETHER)
def test_each_seed_in_jax_is_its_own_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws and hence the same updates, all of them in one program."""
    present = []

    def counting(order: int, part: Any, together: Callable) -> Any:
        return meet(order, part, lambda parts: present.append(len(parts)) or together(parts))

    monkeypatch.setattr(seeds, "meet", counting)
    short = {"max_timesteps": 8, "eval_freq": 4, "n_episodes": 1}
    together = all_seeds("jax", name, tmp_path / "runs", 2, **short)
    assert present == [2, 2, 2]
    alone = train("jax", name, tmp_path / "runs", seed=2, **short)
    assert_alike(together[1], alone)
    assert (together[1] / "config.yaml").read_text() == (alone / "config.yaml").read_text()


@pytest.mark.parametrize("name", [name for name in PAIRS if name not in ("sac", "model_based/dynamics")])
def test_every_twin_meets_the_others(name: str) -> None:
    """All but SAC, which collects its own data, and dynamics models, whose seeds hold out different rows."""
    twin = PAIRS[name].jax
    loop = getattr(twin, "train_on_dataset", twin.train)
    assert "train_together(train_interval, state," in re.sub(r"\(\s+", "(", inspect.getsource(loop))


@pytest.mark.parametrize("name", TOGETHER)
def test_draws_are_those_of_the_run_alone(name: str) -> None:
    """Up to rounding: a key does not depend on how many others are drawn from. NumPy computes both."""
    pair = PAIRS[name]
    config = pair.jax.TrainConfig(**pair.variants["default"])
    inputs, statics = pair.draw_inputs(pair.load(bundled_rows()), 3), pair.draw_statics(config, 7)

    def draw(key: jax.Array) -> Any:
        return pair.jax.draw_noise(key, 6, config, *inputs, **statics)

    keys = jax.vmap(jax.random.key)(np.arange(3))
    together, draw_alone = interpreted(jax.vmap(draw))(keys), interpreted(draw)
    for i in range(3):
        for ours, alone in zip(jax.tree.leaves(together), jax.tree.leaves(draw_alone(keys[i])), strict=True):
            np.testing.assert_allclose(_numbers(ours[i]), _numbers(alone), rtol=1e-6, atol=1e-6)


def _numbers(drawn: Any) -> np.ndarray:
    is_key = jax.dtypes.issubdtype(drawn.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(drawn) if is_key else drawn)


@pytest.mark.thorough
@pytest.mark.parametrize(("side", "name"), [("torch", "td3_bc"), ("jax", "sac")])
def test_one_after_another_keeps_every_bit(side: str, name: str, tmp_path: Path) -> None:
    """If nothing is computed together, a seed's run is that of the seed alone."""
    together = all_seeds(side, name, tmp_path / "runs", 2)
    assert_same_bits(together[1], train(side, name, tmp_path / "runs", seed=2))


@pytest.mark.thorough
def test_seeds_go_on_where_they_were_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the second of three intervals and resumed by `auto`, they have the bits of undisturbed ones."""
    whole = all_seeds("jax", "td3_bc", tmp_path / "whole", 2)

    def stopping(order: int, part: Any, together: Callable) -> Any:
        return meet(order, part, lambda parts: signal.raise_signal(signal.SIGTERM) or together(parts))

    with monkeypatch.context() as patch:
        patch.setattr(seeds, "meet", lambda order, *rest: (stopping if order == 4 else meet)(order, *rest))
        with pytest.raises(Stopped):
            all_seeds("jax", "td3_bc", tmp_path / "runs", 2)
    assert [len(list(run.glob("checkpoints/*"))) for run in (tmp_path / "runs").iterdir()] == [2, 2]
    resumed = all_seeds("jax", "td3_bc", tmp_path / "runs", 2, resume="auto")
    assert len(list((tmp_path / "runs").iterdir())) == 2
    for ours, theirs in zip(resumed, whole, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.thorough
def test_seeds_that_were_killed_between_two_saves_go_on_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some have saved once more than others or are already evaluated, yet the bits are those of undisturbed ones."""
    save = Run.save

    def saving(self: Run, at: int, write: Callable[..., None]) -> None:
        if "-s3-" in self.folder.name:
            shutil.copytree(tmp_path / "whole", tmp_path / f"killed-at-{at}")
        save(self, at, write)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", saving)
        whole = all_seeds("jax", "td3_bc", tmp_path / "whole", 3)
    for step, left in ((4, [4, 4, 0]), (8, [8, 8, 4]), (12, [12, 12, 8])):
        killed = tmp_path / f"killed-at-{step}"
        saved = [Checkpoints(killed / run.name / "checkpoints", ".msgpack").steps() for run in whole]
        assert [max(steps, default=0) for steps in saved] == left
        resumed = all_seeds("jax", "td3_bc", killed, 3, resume="auto")
        assert [run.name for run in resumed] == [run.name for run in whole]
        for ours, theirs in zip(resumed, whole, strict=True):
            assert_same_bits(ours, theirs)


@pytest.mark.parametrize(
    ("saved", "last"),
    [
        ([[4, 8], [4, 8]], 8),
        ([[1, 8, 12], [1, 4, 8]], 8),
        ([[4], []], 0),
        ([[], []], 0),
        ([[4, 20, 24], [4, 8]], None),
        ([[4], [4]], 4),
    ],
)
def test_seeds_go_on_from_what_all_have_saved(saved: list[list[int]], last: int | None) -> None:
    assert last_in_common(saved) == last


def test_no_seed_is_over_before_all_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In PyTorch a finished seed waits for the next one. If both are killed then, they resume; neither starts again."""
    whole = all_seeds("torch", "td3_bc", tmp_path / "whole", 2)
    save, killed = Run.save, tmp_path / "killed"

    def saving(self: Run, at: int, write: Callable[..., None]) -> None:
        save(self, at, write)
        if at == 8 and "-s2-" in self.folder.name:
            shutil.copytree(tmp_path / "second", killed)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", saving)
        all_seeds("torch", "td3_bc", tmp_path / "second", 2)
    resumed = all_seeds("torch", "td3_bc", killed, 2, resume="auto")
    assert len(list(killed.iterdir())) == 2
    for ours, theirs in zip(resumed, whole, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.thorough
@pytest.mark.usefixtures("float64")
def test_seeds_share_the_devices_without_a_word_between_them(tmp_path: Path) -> None:
    """Four seeds on four simulated devices: one each, no communication, and the numbers of a single device."""
    programs, twin = tmp_path / "programs", load_twin("jax", "td3_bc")
    alone = train_seeds(twin.train, twin.TrainConfig(**SHORT, runs_path=str(tmp_path / "one")), 4)
    together = on_four_devices(tmp_path / "four", programs)
    for one, four in zip([run.folder for run in alone], together, strict=True):
        assert_alike(four, one)
    (program,) = programs.glob("*jit__vmapped.cpu_after_optimizations.txt")
    text = program.read_text()
    assert "num_partitions=4" in text
    # The inputs and outputs of each device: none of them is for all four seeds.
    (layout,) = re.findall(r"entry_computation_layout=(.*)", text)
    assert "[1," in layout
    assert "[4," not in layout
    assert not any(word in text for word in ("all-reduce", "all-gather", "all-to-all", "collective-permute"))


def on_four_devices(folder: Path, programs: Path) -> list[Path]:
    """Trains four seeds in a process with four devices, and dumps programs; returns their folders in order."""
    flags = "--xla_force_host_platform_device_count=4"
    flags += f" --xla_dump_to={programs} --xla_dump_hlo_module_re=.*vmapped.*"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment |= {"JAX_ENABLE_X64": "true", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, "corl_jax/td3_bc.py", "--seeds", "4"]
    command += [f"--{name}={value}" for name, value in (SHORT | {"runs_path": folder}).items()]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].startswith("4 seeds, D4RL score over the last evaluations, 3 at most: ")
    return sorted(folder.iterdir())


def test_the_command_refuses_what_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With status 2, in one line."""
    twin = load_twin("torch", "td3_bc")
    for flag, message in (
        ("x", "error: argument --seeds: invalid int value: 'x'"),
        ("0", "error: --seeds must be between 1 and 4294967296 with seed 0"),
    ):
        with pytest.raises(SystemExit) as end:
            cli(twin.train, twin.TrainConfig, "td3_bc", ["--seeds", flag, "--runs_path", str(tmp_path / "runs")])
        assert (end.value.code, capsys.readouterr().err) == (2, f"{message}\n")
    assert not (tmp_path / "runs").exists()
