"""`corl-twins convert`: its output can be trained on, and unusable input is refused in one line."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from corl_jax import td3_bc as jax_td3_bc
from corl_torch import cql, td3_bc
from shared.commands import convert
from shared.commands.common import ended
from shared.frameworks import jax_checkpoints
from shared.runs.configs import cli, dump

STATE_DIM, ACTION_DIM = 11, 3
SHORT = ["--max_timesteps", "4", "--eval_freq", "4", "--n_episodes", "1", "--batch_size", "8"]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs the command; returns its exit code and its output, from standard error if it failed."""

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        status = ended(convert.main, arguments)
        printed = capsys.readouterr()
        assert not (printed.out and printed.err)
        return status, printed.out or printed.err

    return run


def torch_run(folder: Path, twin: Any = td3_bc) -> Any:
    """The files of a run of the PyTorch twin, without training; returns its trainer."""
    config = twin.TrainConfig(device="cpu")
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(dump(config))
    twin.save(trainer, folder / "checkpoint.pt")
    return trainer


def trained_with(script: str, twin: Any, folder: Path, load: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a short run that starts from a checkpoint."""
    monkeypatch.setattr(sys, "argv", [script, *SHORT, "--runs_path", str(folder), "--load_model", str(load)])
    cli(twin.train, twin.TrainConfig, "td3_bc")
    (run,) = folder.iterdir()
    return run


@pytest.mark.thorough
def test_each_twin_trains_on_from_the_others_run(
    said: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice, as a user types it: from PyTorch to JAX and back."""
    first = tmp_path / "first"
    torch_run(first)
    assert said(str(first / "checkpoint"), "--to", "jax") == (0, f"{first / 'checkpoint.msgpack'}\n")
    load = first / "checkpoint.msgpack"
    second = trained_with("corl_jax/td3_bc.py", jax_td3_bc, tmp_path / "second", load, monkeypatch)
    assert jax_checkpoints.read_checkpoint(str(second / "checkpoint.msgpack"))["total_it"] == 4
    assert said(str(second), "--to", "torch") == (0, f"{second / 'checkpoint.pt'}\n")
    third = trained_with("corl_torch/td3_bc.py", td3_bc, tmp_path / "third", second / "checkpoint.pt", monkeypatch)
    assert torch.load(third / "checkpoint.pt", weights_only=True)["total_it"] == 8


def test_there_and_back_again_is_the_same_file(said: Callable, tmp_path: Path) -> None:
    """Every tensor is bitwise equal."""
    torch_run(tmp_path)
    said(str(tmp_path), "--to", "jax")
    back = tmp_path / "back.pt"
    assert said(str(tmp_path), "--to", "torch", "--output", str(back)) == (0, f"{back}\n")
    here, there = (torch.load(path, weights_only=True) for path in (tmp_path / "checkpoint.pt", back))
    assert here.keys() == there.keys()
    del here["generators"], there["generators"]  # which have no counterpart
    for leaf, other in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        assert torch.equal(leaf, other) if isinstance(leaf, torch.Tensor) else leaf == other


def corls(folder: Path, content: dict[str, Any], config: Any) -> None:
    """A checkpoint and settings as CORL writes them, without the algorithm's name and our own settings."""
    folder.mkdir()
    torch.save(content, folder / "checkpoint_9.pt")
    ours = {"eval_env", "eval_backend", "runs_path", "wandb_mode", "resume"}
    lines = dump(dataclasses.replace(config, env="hopper-medium-v2")).splitlines(keepends=True)
    (folder / "config.yaml").write_text("".join(line for line in lines if line.partition(":")[0] not in ours))


def test_corls_files_become_jax_states(said: Callable, tmp_path: Path) -> None:
    """Targets are absent and start as copies, as in CORL's own code."""
    config = td3_bc.TrainConfig(device="cpu")
    trainer = td3_bc.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    parts = {key: part.state_dict() for key, part in trainer.parts().items() if not key.endswith("_target")}
    corls(tmp_path / "corl", parts | {"total_it": 10}, config)
    status, message = said(str(tmp_path / "corl/checkpoint_9.pt"), "--to", "jax")
    assert (status, "name it with --algorithm" in message) == (2, True)
    status, message = said(str(tmp_path / "corl/checkpoint_9"), "--to", "jax", "--algorithm", "td3_bc")
    assert status == 0, message
    content = jax_checkpoints.read_checkpoint(message.strip())
    assert content["total_it"] == 10
    for name in ("critic_1", "critic_1_target"):
        kernel = content["state"][name]["params"]["net"]["layers_0"]["kernel"]
        np.testing.assert_array_equal(kernel.T, trainer.critic_1.net[0].weight.detach())


class Scalar(nn.Module):
    """The class whose objects CORL pickles whole, as CORL's script defines it."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(value))


def test_corls_cql_file_becomes_a_jax_state(said: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two temperatures are pickled modules of the script's own class."""
    monkeypatch.setattr(Scalar, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Scalar", Scalar, raising=False)
    config = cql.TrainConfig(device="cpu")
    trainer = cql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    content = {key: part.state_dict() for key, part in trainer.parts().items()}
    content |= {"sac_log_alpha": Scalar(-0.25), "cql_log_alpha": Scalar(0.75), "total_it": 2}
    corls(tmp_path / "corl", content, config)
    status, message = said(str(tmp_path / "corl/checkpoint_9.pt"), "--to", "jax", "--algorithm", "cql")
    assert status == 0, message
    state = jax_checkpoints.read_checkpoint(message.strip())["state"]
    assert (state["log_temperature"], state["log_alpha_prime"]) == (jnp.float32(-0.25), jnp.float32(0.75))


def no_settings(folder: Path) -> list[str]:
    (folder / "config.yaml").unlink()
    return [str(folder), "--to", "jax"]


def spoilt_settings(folder: Path) -> list[str]:
    (folder / "config.yaml").write_text("alpha: much")
    return [str(folder), "--to", "jax"]


def another_size(folder: Path) -> list[str]:
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("env: mini/hopper-mostly-expert", "env: walker2d-medium-v2"))
    return [str(folder), "--to", "jax"]


def there_already(folder: Path) -> list[str]:
    (folder / "checkpoint.msgpack").write_bytes(b"mine")
    return [str(folder), "--to", "jax"]


def damaged(folder: Path) -> list[str]:
    path = folder / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-1000])
    return [str(folder), "--to", "jax"]


def of_no_algorithm(folder: Path) -> list[str]:
    torch.save({"algorithm": "../os"}, folder / "checkpoint.pt")
    return [str(folder), "--to", "jax"]


REFUSED = {
    no_settings: "name their file with --config_path",
    spoilt_settings: "alpha must be a number, not 'much'",
    another_size: "does not fit this run's networks",
    there_already: "is there already: name another file, or replace it with --overwrite",
    damaged: "cannot be read",
    of_no_algorithm: "unknown algorithm '../os'",
    lambda folder: [str(folder), "--to", "torch"]: "is a checkpoint of torch already",
    lambda folder: [str(folder / "other"), "--to", "jax"]: "there is no checkpoint at",
    lambda folder: [str(folder), "--to", "jax", "--output", "x.pt"]: "end it in .msgpack",
    lambda folder: [str(folder), "--to", "tensorflow"]: "invalid choice",
    lambda folder: [str(folder), "--to", "jax", "--algorithm", "cql"]: "is of td3_bc, not of cql",
    lambda folder: [str(folder), "--to", "jax", "--output", "/proc/x.msgpack"]: "cannot write /proc/x.msgpack",
}


@pytest.mark.parametrize(("spoil", "message"), REFUSED.items())
def test_what_cannot_be_used_is_refused(
    spoil: Callable[[Path], list[str]], message: str, said: Callable, tmp_path: Path
) -> None:
    torch_run(tmp_path)
    arguments = spoil(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    status, printed = said(*arguments)
    assert (status, printed.count("\n")) == (2, 1)
    assert message in printed
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_is_replaced_when_that_is_said(said: Callable, tmp_path: Path) -> None:
    torch_run(tmp_path)
    there_already(tmp_path)
    assert said(str(tmp_path), "--to", "jax", "--overwrite") == (0, f"{tmp_path / 'checkpoint.msgpack'}\n")
    assert (tmp_path / "checkpoint.msgpack").read_bytes() != b"mine"
