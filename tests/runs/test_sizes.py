"""Sizes beyond the memory: one line before the run or at its end, and no traceback."""

import dataclasses
import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
import torch

from shared.commands.common import ended
from shared.errors import InputError
from shared.frameworks.twins import load_twin
from shared.runs import machine, memory
from shared.runs.configs import algorithms as tables
from shared.runs.configs import cli, dataset_row, from_settings
from shared.runs.memory import check_settings, is_exhausted
from shared.runs.run import Run
from shared.runs.seeds import train_seeds
from tests.runs.stopped_runs import config, only_run

# Each is refused before anything of its size is allocated.
BEYOND = [
    ("td3_bc", "batch_size", 10**9),
    ("cql", "cql_n_actions", 10**8),
    ("edac", "n_critics", 10**7),
    ("sac_n", "hidden_dim", 10**6),
    ("rebrac", "n_episodes", 10**12),
    ("dt", "seq_len", 10**6),
    ("dt", "n_episodes", 10**6),
    ("dt", "episode_len", 10**11),
    ("sac", "max_timesteps", 10**12),
    ("sac", "n_episodes", 10**12),
    ("cql", "batch_size", 10**4000),
    ("bcq", "critic_hidden_dims", (2_000_000, 2_000_000)),
    ("rebrac", "critic_n_hiddens", 10**9),
]
# Each of DT's episodes has its own environment. This many of a robot do not fit; a million of Pendulum's do.
DATA = {"dt": {"env": "mini/hopper-mostly-expert"}}


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Returns a function that sets the memory of the machine and its GPU, in GiB."""

    def set_memory(machines: int, gpus: int) -> None:
        monkeypatch.setattr(memory, "memory", lambda: machines * 2**30)
        monkeypatch.setattr(memory, "gpu_memory", lambda: gpus * 2**30)

    return set_memory


@pytest.mark.parametrize(("name", "setting", "value"), BEYOND, ids=lambda part: str(part)[:16])
def test_what_no_machine_holds_is_refused(name: str, setting: str, value: int, tmp_path: Path) -> None:
    said = rf"^{setting} [\d,\[\]]+ needs at least [\d,.]+ GiB, this machine has [\d,.]+ GiB: lower {setting}$"
    with pytest.raises(InputError, match=said):
        load_twin("torch", name).train(config("torch", name, tmp_path, **DATA.get(name, {}), **{setting: value}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", tables())
def test_every_width_of_every_algorithm_counts(name: str, little_memory: Callable[[int, int], None]) -> None:
    """So does the number of networks with it."""
    little_memory(64, 0)
    config_class = load_twin("torch", name).TrainConfig
    for field in dataclasses.fields(config_class):
        if re.search(r"hidden_dims?$|^n_critics$|^n_ensemble$|_n_hiddens$|^embedding_dim$", field.name):
            beyond = (2_000_000, 2_000_000) if field.name.endswith("dims") else 10**9
            with pytest.raises(InputError, match=f"^{field.name} .*: lower {field.name}$"):
                check_settings(config_class(**{field.name: beyond}))


def test_every_environment_of_a_sequence_model_counts(little_memory: Callable[[int, int], None]) -> None:
    """Each episode has its own, with its own model of the robot."""
    little_memory(1, 0)
    settings = config("torch", "dt", Path("unused"), **DATA["dt"], n_episodes=10_000)
    check_settings(settings)
    with pytest.raises(InputError, match="n_episodes 10000 needs at least"):
        load_twin("torch", "dt").train(settings)


def test_so_many_seeds_are_refused(tmp_path: Path) -> None:
    number = 10**9
    with pytest.raises(InputError, match=rf"--seeds {number} needs at least .+: lower --seeds"):
        train_seeds(lambda _: pytest.fail("it began"), config("torch", "td3_bc", tmp_path), number)


@pytest.mark.parametrize("name", tables())
def test_no_run_of_ours_is_refused_where_there_is_a_gibibyte(
    name: str, little_memory: Callable[[int, int], None]
) -> None:
    """Neither the defaults nor the bundled dataset's row."""
    little_memory(1, 0)
    twin = load_twin("torch", name)
    row = dataset_row(twin.TrainConfig, name, twin.TrainConfig.env)
    for settings in ({}, row):
        check_settings(from_settings(twin.TrainConfig, name, settings, ""))


def test_a_gpu_may_hold_more_than_the_machine(little_memory: Callable[[int, int], None], tmp_path: Path) -> None:
    settings = {"batch_size": 10**6}
    little_memory(1, 80)
    check_settings(config("jax", "td3_bc", tmp_path, **settings, device="auto"))
    with pytest.raises(InputError, match=r"has 1\.0 GiB: lower batch_size"):
        check_settings(config("jax", "td3_bc", tmp_path, **settings, device="cpu"))
    little_memory(1, 1)
    with pytest.raises(InputError, match=r"has 1\.0 GiB: lower batch_size"):
        check_settings(config("jax", "td3_bc", tmp_path, **settings, device="auto"))


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("0::/job/step\n", {"job/memory.max": "5000", "job/step/memory.max": "max"}, 5000),
        ("0::/elsewhere\n", {"memory.max": "7000\n"}, 7000),
        ("9:name=systemd:/\n4:cpu,memory:/job\n", {"memory/job/memory.limit_in_bytes": "6000"}, 6000),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, None),
        ("", {}, None),
    ],
)
def test_a_containers_limit_counts(
    group: str, limits: dict[str, str], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For both versions of cgroups, and for the process's own group or one around it."""
    for name, limit in limits.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(limit)
    (tmp_path / "group").write_text(group)
    monkeypatch.setattr(machine, "_GROUP", tmp_path / "group")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    whole = psutil.virtual_memory().total
    assert machine.memory() == (expected or whole) + psutil.swap_memory().total


def _numpy() -> None:
    np.ones(2**62, np.int8)


def _torch() -> None:
    torch.ones(2**62, dtype=torch.int8)


def _jax() -> None:
    jax.jit(lambda: jnp.ones((2**58,), jnp.int8))().block_until_ready()


def _fork() -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def _cuda() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.mark.parametrize("exhaust", [_numpy, _torch, _jax, _fork, _cuda])
def test_each_package_is_understood(exhaust: Callable[[], None]) -> None:
    with pytest.raises((MemoryError, RuntimeError, OSError)) as caught:
        exhaust()
    assert is_exhausted(caught.value)


@pytest.mark.parametrize(
    "error", [None, ValueError("memory"), OSError(errno.ENOSPC, "No space"), InputError("out of memory")]
)
def test_other_errors_are_not(error: Exception | None) -> None:
    assert not is_exhausted(error)


def test_a_run_says_what_to_lower_and_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Run.log

    def exhausting(self: Run, step: int, metrics: Any) -> None:
        if step == 8:
            raise MemoryError
        log(self, step, metrics)

    monkeypatch.setattr(Run, "log", exhausting)
    twin = load_twin("torch", "td3_bc")
    settings = {"max_timesteps": 12, "eval_freq": 4, "n_episodes": 1, "batch_size": 400, "runs_path": tmp_path}
    with pytest.raises(SystemExit, match="1"):
        cli(twin.train, twin.TrainConfig, "td3_bc", [f"--{name}={value}" for name, value in settings.items()])
    run = only_run(tmp_path)
    saved = f"last checkpoint: {run / 'checkpoints/step_4.pt'}; --resume {run} continues from it"
    assert capsys.readouterr().err.splitlines()[-1] == f"error: out of memory: lower batch_size; {saved}"


@pytest.mark.parametrize(("number", "saved"), [(1, "nothing was saved yet"), (2, "each seed keeps its checkpoints")])
def test_outside_of_a_run_too(number: int, saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For example while networks are being created."""

    def train(settings: Any) -> None:
        raise MemoryError

    twin = load_twin("torch", "sac_n")
    flags = ["--hidden_dim", "2000", "--seeds", str(number)]
    with pytest.raises(SystemExit, match="1"):
        cli(train, twin.TrainConfig, "sac_n", flags)
    assert capsys.readouterr().err == f"error: out of memory: lower hidden_dim; {saved}\n"


def test_a_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(lambda _: _numpy(), []) == 1
    assert capsys.readouterr().err == "error: out of memory: ask for less at once\n"
