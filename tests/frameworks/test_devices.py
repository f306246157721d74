"""Devices that are named but absent get one line, and never a tensor that cannot be read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import torch

from shared.errors import InputError
from shared.frameworks import jax_side, torch_side

ROOT = Path(__file__).resolve().parents[2]


def all_device_types() -> list[str]:
    """Every device type of this PyTorch, from the text of its own error."""
    with pytest.raises(RuntimeError, match="Expected one of") as caught:
        torch.device("none")
    return re.search(r"Expected one of (.+) device type", str(caught.value))[1].split(", ")


def computes(device: str) -> bool:
    """Whether a backend says that it is available; one that cannot say so is not."""
    module = getattr(torch, device, None)
    return device == "cpu" or (hasattr(module, "is_available") and module.is_available())


def test_jax_s_name_for_a_gpu_is_pytorch_s_too() -> None:
    assert torch_side.resolve_device("gpu") == torch_side.resolve_device("cuda")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", all_device_types())
def test_pytorch_computes_on_a_device_or_says_in_a_line_that_it_cannot(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "cuda" and not computes(name):
        assert torch_side.resolve_device(name).type == "cpu"
        assert capsys.readouterr().err == "device cuda is not available here: using cpu\n"
    elif computes(name):
        assert torch_side.resolve_device(name).type == name
    else:
        with pytest.raises(InputError, match=rf"^device {name} cannot compute here \(.+\): use auto, cpu or cuda$"):
            torch_side.resolve_device(name)


def test_pytorch_refuses_a_gpu_of_a_number_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for the seventh GPU doesn't want the processor."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="device cuda:7 is not here, because PyTorch finds no GPU: use auto or cpu"):
        torch_side.resolve_device("cuda:7")


@pytest.mark.parametrize("name", ["mps", "foo", "", "cuda:x", "tpu:99999", "cpu:-1"])
def test_jax_refuses_what_it_does_not_know(name: str) -> None:
    with pytest.raises(InputError, match=rf"device '{name}' is not one that JAX knows: use auto, cpu, cuda or tpu"):
        jax_side.resolve_device(name)


def test_jax_counts_its_devices() -> None:
    """A missing number is not replaced by the first device."""
    devices = jax.devices("cpu")
    assert jax_side.resolve_device(f"cpu:{len(devices) - 1}") == devices[-1]
    with pytest.raises(InputError, match=rf"device cpu:{len(devices)} is not here: JAX finds {len(devices)} "):
        jax_side.resolve_device(f"cpu:{len(devices)}")


def test_jax_without_the_device_uses_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jax_side, "_devices", lambda platform: jax.devices("cpu") if platform == "cpu" else [])
    assert jax_side.resolve_device("cuda").platform == "cpu"
    assert capsys.readouterr().err == "device cuda is not available here: using cpu\n"
    with pytest.raises(InputError, match="device cuda:1 is not here, because JAX finds none of its kind"):
        jax_side.resolve_device("cuda:1")


def test_jax_says_what_leaves_the_cpu_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax_side, "_devices", lambda platform: [])
    with pytest.raises(InputError, match="device cpu is left out by JAX_PLATFORMS=cuda: unset it, or use auto"):
        jax_side.resolve_device("cpu")


@pytest.mark.thorough
def test_platforms_that_jax_does_not_have_are_named(tmp_path: Path) -> None:
    arguments = ["--max_timesteps", "1", "--n_episodes", "1", "--runs_path", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "corl_jax/td3_bc.py", *arguments],
        env=os.environ | {"JAX_PLATFORMS": "foo"},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
    )
    assert done.returncode == 2
    assert done.stderr == "error: JAX finds no device for JAX_PLATFORMS=foo: unset it, or set it to cpu\n"
    assert not list(tmp_path.iterdir())
