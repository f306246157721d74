"""Files that `corl-twins check` cannot use: one line says what was expected, and nothing else is judged."""

import builtins
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from parity_tests import errors
from port_checker import check
from shared.commands.common import ended
from tests.port_checker.conftest import AWAC, PLAIN, ROOT


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def mlp(layers, x):", "def mlp(layers, x:", "port.py, line 18: '(' was never closed: correct the syntax"),
        ("ADAM = optax.adam(3e-4)", "raise SystemExit(3)", 'put what runs below `if __name__ == "__main__":`'),
        ("def outputs(state, batch):", "def forward(state, batch):",
         "port.py has no function outputs: expected outputs(state, batch) that gives"),
        ("def actor_loss(actor, critic_1, state,", "def actors_loss(actor, critic_1, state,",
         "port.py has no function actor_loss: expected actor_loss(actor, state, batch) that gives a scalar"),
        ("def actor_loss(actor, critic_1, state,", "def actor_loss(actor, critic, state,",
         "actor_loss asks for critic: arguments go by name, out of state, batch, config, noise"),
        ("def critic_loss(params, state,", "def critic_loss(state, both,",
         "critic_loss asks for none of critic_1, critic_2, critics, params, which it is differentiated by"),
        ("actions)[0]\n", "actions)[0, :, None]\n", "actor_loss stops with AssertionError"),
        ("jnp.square(values(params, batch.observations, batch.actions) - target).mean() * 2",
         "jnp.square(values(params, batch.observations, batch.actions) - target)",
         "critic_loss gives an array of shape (2, 32): expected a scalar, or (scalar, aux)"),
        ('"critic_1": q1, "critic_2": q2}', '"critic_1": q1[:, None], "critic_2": q2}',
         "outputs gives 'critic_1' (32, 1): expected 'actor' (32, 3), 'critic_1' (32,), 'critic_2' (32,)"),
        ('        "actor_target": actor,\n', "", "gives has no actor_target: expected a field of this name"),
        ('"critics_optimizer": ADAM.init(critics)', '"critics_optimizer": 0',
         "critics_optimizer must be the state of an optax optimiser"),
        ('"critics_optimizer": ADAM.init(critics)', '"critics_optimizer": ADAM.init(actor)',
         "critics_optimizer must hold moments for the weights of critic_1, critic_2"),
        ("[state_dim, 256, 256, action_dim]", "[state_dim, 256, action_dim]",
         "state.actor must hold the reference's numbers: expected net.0.weight (256, 11)"),
        ("    return state, metrics", "    raise SystemExit(0)", "update stops with SystemExit: 0 (line 9"),
        ("ADAM = optax.adam(3e-4)", "raise ValueError('x' * 10**6)", f"does not run: ValueError: {'x' * 300}... (line"),
        ("    return state, metrics", "    return None",
         "update gives NoneType: expected the next state, or (state, metrics)"),
    ],
)  # fmt: skip
def test_what_is_expected_is_said(checked: Callable, old: str, new: str, message: str) -> None:
    """In one line, with exit status 2."""
    if "AssertionError" in message:
        new += "    assert q.shape == batch.rewards.shape\n"
    status, printed = checked(PLAIN, (old, new))
    assert status == 2, printed
    (error,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert message in error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "port.py",
            b'"""My port."""\n# to be written\n',
            "defines nothing: `corl-twins check --template ALGORITHM` prints a file to start from",
        ),
        ("port.py", b"\x7fELF\x02\x00", "holds no text, or none in UTF-8: give the .py file with your port"),
        ("port.py", b"x = '\xe9'", "holds no text, or none in UTF-8"),
        ("port.py", b"import torch, gym_of_old\nx = 1", "is a PyTorch file, it imports torch and not jax"),
        ("port.py", b"import torch.nn as nn, gym_of_old\nclass Actor(nn.Module): pass", "is a PyTorch file"),
        ("port.pt", b"PK", "is not a Python file: give the .py file with your port"),
        (".", b"", "is a folder: give the .py file with your port"),
    ],
)
def test_what_is_no_port_is_told(
    name: str, content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / name
    if name != ".":
        path.write_bytes(content)
    assert ended(check.main, [str(path), "--algorithm", "td3_bc"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path} {message}")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("path", "checked_as", "named"),
    [
        # Offline and online, its losses have the same names.
        (AWAC, "td3_bc", "awac or finetune/awac"),
        (ROOT / "corl_jax" / "dt.py", "iql", "dt"),
    ],
)
def test_another_algorithm_s_port_is_known(path: Path, checked_as: str, named: str, checked: Callable) -> None:
    status, printed = checked(path, algorithm=checked_as)
    assert status == 2
    advice = f"check it with --algorithm {named.partition(' ')[0]}"
    start = f"error: port.py looks like a port of {named}, {advice}. As {checked_as}: "
    assert start in printed


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("import optax", "import numpy, optax\nnumpy.random.randint = max", "replaces numpy.random.randint"),
        ("import optax", "import optax, builtins\nbuiltins.max = min", "replaces builtins.max"),
        ("import optax", "import optax, parity_tests.errors\nparity_tests.errors.error = lambda *x: 0.0",
         "replaces parity_tests.errors.error"),
        ("import optax", "import optax, sys\ndel sys.modules['optax']", "removes the module optax"),
        ("import optax", "import optax, torch\ntorch.set_default_dtype(torch.float32)", "changes the precision"),
        ("def outputs(state, batch):", "def outputs(state, batch):\n    jnp.abs = jnp.square",
         "replaces jax.numpy.abs"),
    ],
)  # fmt: skip
def test_a_file_leaves_what_the_check_stands_on(
    old: str, new: str, message: str, checked: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They are restored after the test.
    for owner, name in ((np.random, "randint"), (builtins, "max"), (errors, "error"), (jax.numpy, "abs")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setitem(sys.modules, "optax", sys.modules["optax"])
    status, printed = checked(PLAIN, (old, new))
    assert status == 2
    assert f"port.py {message}" in printed.splitlines()[-1]
    assert "forward" not in printed


HARMLESS = """import optax
import builtins, os

jax.config.update("jax_enable_x64", False)
builtins.print = lambda *x, **y: None
os.chdir("/")


def from_torch(config, weights, part):
    assert config.discount == 0.99
    layers = [name.removesuffix(".weight") for name in weights if name.endswith("weight")]
    return [{"w": weights[f"{layer}.weight"], "b": weights[f"{layer}.bias"]} for layer in layers]
"""


@pytest.mark.thorough
def test_what_does_no_harm_is_let_be(checked: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """And any function may have the settings as an argument."""
    monkeypatch.setattr(builtins, "print", print)
    monkeypatch.chdir(ROOT)
    outputs = "def outputs(config, state, batch):\n    assert config.discount == 0.99"
    status, printed = checked(PLAIN, ("import optax\n", HARMLESS), ("def outputs(state, batch):", outputs))
    assert (status, printed.splitlines()[-1]) == (0, "port.py is td3_bc: all checks pass under the settings 'default'")
