"""`corl-twins check` as a user types it: verdicts, messages, exit codes."""

import ast
import builtins
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

from parity_tests import check, errors
from parity_tests.checker.answers import answer
from parity_tests.checker.fields import Optimizer
from parity_tests.checker.figures import TOLERANCES, compare
from parity_tests.checker.layout import find_layout
from parity_tests.checker.port import OwnTwin
from parity_tests.checker.questions import questions
from parity_tests.checker.template import template
from parity_tests.pair import edited
from parity_tests.pairs import PAIRS
from parity_tests.precision import both_in
from shared.commands.common import ended
from shared.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PLAIN = ROOT / "tests" / "parity" / "ports" / "plain_td3_bc.py"
AWAC = ROOT / "exercises" / "solutions" / "10_awac.py"


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str]]:
    """Checks a file with some of its text replaced; gives the exit status and what is printed.

    Under the default settings only: the other ones take as long again.
    """

    def run(path: Path, *changes: tuple[str, str], algorithm: str = "td3_bc") -> tuple[int, str]:
        source = path.read_text()
        for old, new in changes:
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        port = tmp_path / "port.py"
        port.write_text(source)
        lines: list[str] = []

        def tell(kind: str, value: str) -> None:
            if kind == "line":
                lines.append(f"{value}\n")

        arguments = [str(port), "--algorithm", algorithm, "--settings", "default"]
        status = ended(lambda arguments: check.main(arguments, tell), arguments)
        return status, "".join(lines) + capsys.readouterr().err

    return run


# ---- right ports ---------------------------------------------------------------------------------------------------


def test_functions_over_dicts_hold(capsys: pytest.CaptureFixture) -> None:
    """Kernels as PyTorch's, both critics in one pass, one optimiser for both, sums in another order.

    The tests below climb with it under the default settings.
    """
    status = ended(check.main, [str(PLAIN), "--algorithm", "td3_bc", "--settings", "other"])
    printed = capsys.readouterr().out
    assert (status, printed.splitlines()[-1]) == (0, "plain_td3_bc.py is td3_bc: all rungs hold"), printed
    verdicts = [line.split()[:2] for line in printed.splitlines()[:-1]]
    assert verdicts == [[rung, "not" if rung == "draws" else "holds"] for rung in check.RUNGS]
    assert "\ndraws       not given\n" in printed


RATE = "hp.learning_rate * jnp.minimum((updates + 1.0) / hp.warmup_steps, 1.0)"


@pytest.mark.parametrize(
    ("rate", "right"),
    [
        ("optax.linear_schedule(0.0, hp.learning_rate, hp.warmup_steps)(updates + 1)", True),
        ("hp.learning_rate * jnp.minimum((updates + 1) / hp.warmup_steps, 1.0)", True),
        ("hp.learning_rate * jnp.minimum((updates + 1) / (hp.warmup_steps + 1), 1.0)", False),
    ],
)
def test_a_count_may_be_divided(rate: str, right: bool) -> None:
    """Optax counts in int32, which JAX divides in single precision."""
    port = OwnTwin("dt", edited(PAIRS["dt"], "rate", [(RATE, rate)]), PAIRS["dt"])
    with both_in("float64"):
        for rung in ("update", "log", "trajectory"):
            for question in questions("dt", rung, ("no dropout",)):
                compared = compare(rung, answer(port, question), question.expected).values()
                worst = max(value for values in compared for value in values.values())
                # Rounding, or a hundred times what would be let pass
                assert worst < 1e-11 if right else worst > 100 * TOLERANCES[rung]


def test_a_train_state_has_made_as_many_steps_as_its_optimiser() -> None:
    weights = {"w": jax.numpy.zeros(3)}
    part = TrainState.create(apply_fn=None, params=weights, tx=optax.adam(1e-3))
    state = Optimizer("actor", ("actor",)).with_moments({"actor": part}, weights, weights, np.asarray(30))
    assert (state["actor"].step, state["actor"].opt_state[0].count) == (30, 30)


# ---- mistakes in ports that are not our twins ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "rung", "named"),
    [
        ("max_action * jnp.tanh(mlp(layers, observations))", "max_action * mlp(layers, observations)", "forward",
         "tanh forgotten"),
        ("jnp.where(batch.terminals > 0, 0.0, next_q)", "jnp.where(batch.terminals > 0, next_q, 0.0)", "loss",
         "inverted done flag"),
        ("batch.next_observations, actions).min(0)", "batch.next_observations, actions).max(0)", "loss",
         "maximum for minimum"),
        ("- target).mean() * 2", "- target).mean()", "loss", "mean for a sum"),
        ("jax.lax.stop_gradient(jnp.abs(q).mean())", "jnp.abs(q).mean()", "gradient", "missing stop_gradient"),
        ("optax.adam(3e-4)", "optax.adam(3e-4, eps=1e-5)", "update", "Adam's epsilon"),
        ('actor_loss)(state["actor"], critics[0]', 'actor_loss)(state["actor"], before', "update",
         "actor before critic"),
        ("t + tau * (s - t)", "s + tau * (t - s)", "update", "tau the wrong way round"),
    ],
)  # fmt: skip
def test_a_mistake_in_another_style_is_named(checked: Callable, old: str, new: str, rung: str, named: str) -> None:
    changes = [(old, new)]
    if "before" in new:
        changes.append(('    critics = state["critic_1"], state["critic_2"]\n', '    before = state["critic_1"]\n'
                        '    critics = state["critic_1"], state["critic_2"]\n'))  # fmt: skip
    status, printed = checked(PLAIN, *changes)
    failed = [line.split()[0] for line in printed.splitlines() if " FAILS " in line]
    assert (status, failed) == (1, [rung]), printed
    assert [line.split(" (corl_jax")[0] for line in printed.splitlines() if line.startswith("  * ")] == [f"  * {named}"]


def test_a_wrong_metric_is_told_beside_one_that_is_not_logged(checked: Callable) -> None:
    status, printed = checked(PLAIN, ('metrics = {"critic_loss": loss}', 'metrics = {"critic_loss": 3.0 * loss}'))
    assert status == 1
    assert "Your log (metrics): no mistake of the library gives these numbers." in printed
    assert "It may help: `critic_loss`: your numbers are the reference's times 3." in printed


def test_two_mistakes_in_two_losses_are_both_named(checked: Callable) -> None:
    status, printed = checked(
        AWAC,
        ("(1.0 - batch.terminals)", "batch.terminals"),
        (".sum(axis=-1)\n    assert log", ".mean(axis=-1)\n    assert log"),
        algorithm="awac",
    )
    assert status == 1
    assert "Your loss (critic_loss): just what" in printed
    assert "* inverted done flag (corl_jax/awac.py:" in printed
    assert "Your loss (actor_loss): just what" in printed
    assert "* mean over actions (corl_jax/awac.py:" in printed


DRAWS = """
def draw_noise(key, step, config, dataset_size, action_dim):
    keys = jax.random.split(key)
    rows = jax.random.choice(keys[0], dataset_size, (config.batch_size,))
    return rows, {"target": jax.random.normal(keys[1], (config.batch_size, action_dim))}


def update(state"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("", "", ["  Your draws (indices, noise.target): just what the reference gives with this mistake in it.",
                  "  * same noise at every update (corl_jax/td3_bc.py:"]),
        ("split(key)", "split(jax.random.fold_in(key, step // 2))",
         ["  Your draws (indices, noise.target): no mistake of the library gives these numbers.",
          "  It may help: updates draw what others drew: fold `step` into the key."]),
        ("    keys", "    raise NotImplementedError\n    keys", ["draws       not climbed yet: write draw_noise"]),
    ],
)  # fmt: skip
def test_draws_that_are_given_are_checked(checked: Callable, old: str, new: str, told: list[str]) -> None:
    status, printed = checked(PLAIN, ("\ndef update(state", DRAWS.replace(old, new)))
    assert status == 1
    below = printed[printed.index("\ndraws  ") :]
    assert all(f"\n{line}" in below for line in told), printed


def test_an_unknown_mistake_is_not_given_a_name(checked: Callable) -> None:
    """What the numbers show by themselves is said."""
    status, printed = checked(PLAIN, ("- target).mean() * 2", "- target).mean() * 6"))
    assert status == 1
    assert "no mistake of the library gives these numbers" in printed
    assert "your numbers are the reference's times 3" in printed
    assert "  * " not in printed


def test_single_precision_is_recognised(checked: Callable) -> None:
    change = ("    return x @ last", "    x = x.astype(jnp.float32)\n    return x @ last")
    status, printed = checked(PLAIN, change)
    assert status == 1
    assert "single precision" in printed


# ---- files that cannot be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def mlp(layers, x):", "def mlp(layers, x:", "port.py, line 20: '(' was never closed: correct the syntax"),
        ("import optax", "import optaks", "port.py does not run: ModuleNotFoundError: No module named 'optaks' (line"),
        ("ADAM = optax.adam(3e-4)", "raise SystemExit(3)", 'put what runs below `if __name__ == "__main__":`'),
        ("def outputs(state, batch):", "def forward(state, batch):",
         "port.py has no function outputs: expected outputs(state, batch) that gives"),
        ("def actor_loss(actor, critic_1, state,", "def actors_loss(actor, critic_1, state,",
         "port.py has no function actor_loss: expected actor_loss(actor, state, batch) that gives a scalar"),
        ("def actor_loss(actor, critic_1, state,", "def actor_loss(actor, critic, state,",
         "actor_loss asks for critic: arguments go by name, out of state, batch, config, noise"),
        ("def critic_loss(params,", "def critic_loss(both,",
         "critic_loss asks for none of critic_1, critic_2, critics, params, which it is differentiated by"),
        ("actions)[0]\n", "actions)[0, :, None]\n", "actor_loss stops with AssertionError"),
        ("jnp.square(values(params, batch.observations, batch.actions) - target).mean() * 2",
         "jnp.square(values(params, batch.observations, batch.actions) - target)",
         "critic_loss gives an array of shape (2, 32): expected a scalar, or (scalar, aux)"),
        ('"critic_1": q1, "critic_2": q2}', '"critic_1": q1[:, None], "critic_2": q2}',
         "outputs gives 'critic_1' (32, 1): expected 'actor' (32, 3), 'critic_1' (32,), 'critic_2' (32,)"),
        ('"critic_1": q1, "critic_2": q2}', '"q": q1, "critic_2": q2}', "outputs gives 'q' (32,): expected 'actor'"),
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
        ("port.py", b"", "defines nothing: `corl-twins check --template ALGORITHM` prints a file to start from"),
        ("port.py", b'"""My port."""\n# to be written\n', "defines nothing"),
        ("port.py", b"\x7fELF\x02\x00", "holds no text, or none in UTF-8: give the .py file with your port"),
        ("port.py", b"\x80\x04\x95", "holds no text, or none in UTF-8"),
        ("port.py", b"x = '\xe9'", "holds no text, or none in UTF-8"),
        (
            "port.py",
            (ROOT / "corl_torch" / "td3_bc.py").read_bytes(),
            "is a PyTorch file, it imports torch and not jax",
        ),
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


@pytest.mark.parametrize(
    ("path", "checked_as", "named"),
    [(AWAC, "td3_bc", "awac"), (PLAIN, "awac", "td3_bc"), (ROOT / "corl_jax" / "dt.py", "iql", "dt")],
)
def test_another_algorithm_s_port_is_known(path: Path, checked_as: str, named: str, checked: Callable) -> None:
    status, printed = checked(path, algorithm=checked_as)
    assert status == 2
    start = f"error: port.py looks like a port of {named}, check it with --algorithm {named}. As {checked_as}: "
    assert start in printed


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
    # They are put back after the test.
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


def test_what_does_no_harm_is_let_be(checked: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """And any function may ask for the settings."""
    monkeypatch.setattr(builtins, "print", print)
    monkeypatch.chdir(ROOT)
    outputs = "def outputs(config, state, batch):\n    assert config.discount == 0.99"
    status, printed = checked(PLAIN, ("import optax\n", HARMLESS), ("def outputs(state, batch):", outputs))
    assert (status, printed.splitlines()[-1]) == (0, "port.py is td3_bc: all rungs hold")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py", "--algorithm", "td3_bc"], "there is no file nowhere.py: give the .py file with your port"),
        ([str(PLAIN)], "give a file and its --algorithm, or --template"),
        ([str(PLAIN), "--algorithm", "ppo"], "invalid choice: 'ppo'"),
        ([str(PLAIN), "--algorithm", "td3_bc", "--settings", "fast"], "choose from default, other"),
    ],
)
def test_a_bad_command_line_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert ended(check.main, arguments) == 2
    assert message in capsys.readouterr().err


def test_help_says_that_the_file_is_executed() -> None:
    command = [sys.executable, "-m", "shared", "check", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "THE FILE IS EXECUTED" in done.stdout


# ---- half-done files -----------------------------------------------------------------------------------------------


def test_a_half_done_file_is_checked_as_far_as_it_goes(checked: Callable) -> None:
    """One loss is held to the reference, the other is named, and so is what the next rung needs."""
    body = '    actions = policy(actor, batch.observations, state["max_action"])\n'
    status, printed = checked(PLAIN, (body, "    raise NotImplementedError\n" + body))
    assert status == 1
    lines = {line.split()[0]: line for line in printed.splitlines()}
    assert "holds" in lines["loss"]
    assert lines["loss"].endswith("not written yet: actor_loss")
    assert lines["gradient"].endswith("not written yet: actor_loss by actor")
    assert lines["update"].startswith("update      not climbed yet: write actor_loss")
    assert "all rungs hold" not in printed


def test_a_rung_of_which_nothing_is_written_does_not_hold(checked: Callable) -> None:
    first = "    actions = policy(actor, batch.observations"
    bound = '    bound = state["max_action"]\n'
    changes = [(text, f"    raise NotImplementedError\n{text}") for text in (first, bound)]
    status, printed = checked(PLAIN, *changes)
    assert status == 1
    assert "\nloss        not written yet: critic_loss, actor_loss\n" in printed
    assert (
        "\ngradient    not written yet: critic_loss by critic_1, critic_loss by critic_2, actor_loss by actor\n"
        in printed
    )


@pytest.mark.parametrize("name", PAIRS)
def test_templates_name_all_that_is_checked(name: str) -> None:
    with both_in("float64"):
        tree = ast.parse(template(PAIRS[name]))
    functions = {node.name: [a.arg for a in node.args.args] for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions.keys() == {"create_train_state", "outputs", "draw_noise", "update", *PAIRS[name].losses}


def test_a_template_is_a_file_to_check(checked: Callable, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert ended(check.main, ["--template", "td3_bc"]) == 0
    path = tmp_path / "template.py"
    path.write_text(capsys.readouterr().out)
    assert checked(path) == (1, "weights     not climbed yet: write create_train_state\n")


# ---- layouts -------------------------------------------------------------------------------------------------------

TENSORS = {
    "net.0.weight": np.ones((4, 4)),
    "net.0.bias": np.ones(4),
    "net.2.weight": np.ones((2, 4)),
    "net.2.bias": np.ones(2),
}


def tree(*names: str, shapes: tuple = ((4, 4), (4,), (4, 2), (2,))) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape) for name, shape in zip(names, shapes, strict=True)}


def test_numbers_come_back_as_they_went() -> None:
    values = {name: np.random.default_rng(0).normal(size=value.shape) for name, value in TENSORS.items()}
    with both_in("float64"):
        layout = find_layout("actor", TENSORS, tree("w1", "b1", "w2", "b2"), None)
        weights = layout.to_tree(values)
        back = layout.to_torch(weights, "weights")
    np.testing.assert_array_equal(weights["w1"], values["net.0.weight"].T)
    assert all((back[name] == values[name]).all() for name in TENSORS)


def test_the_other_kernels_tell_which_way_a_square_one_is() -> None:
    with both_in("float64"):
        shapes = ((4, 4), (4,), (2, 4), (2,))
        weights = find_layout("actor", TENSORS, tree("w1", "b1", "w2", "b2", shapes=shapes), None).to_tree(
            {**TENSORS, "net.0.weight": np.arange(16.0).reshape(4, 4)}
        )
    np.testing.assert_array_equal(weights["w1"], np.arange(16.0).reshape(4, 4))


def test_layers_that_cannot_be_told_apart_are_asked_for() -> None:
    tensors = TENSORS | {"net.1.weight": np.ones((4, 4)), "net.1.bias": np.ones(4)}
    weights = tree("first", "b0", "out", "b2") | {"second": np.zeros((4, 4)), "b1": np.zeros(4)}
    with pytest.raises(InputError, match=r"which of state.actor's first, second is which of .* define from_torch"):
        find_layout("actor", tensors, weights, None)


def transposed(part: str, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"out": weights["net.2.weight"].T, "hidden": weights["net.0.weight"].T, "c": weights["net.0.bias"],
            "d": weights["net.2.bias"]}  # fmt: skip


def test_a_file_may_say_how_its_weights_are_laid_out() -> None:
    values = {name: np.random.default_rng(0).normal(size=value.shape) for name, value in TENSORS.items()}
    with both_in("float64"):
        layout = find_layout("actor", TENSORS, tree("hidden", "c", "out", "d"), transposed)
        back = layout.to_torch(layout.to_tree(values), "weights")
    assert all((back[name] == values[name]).all() for name in TENSORS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"d": np.zeros(2)}, "must hold each of PyTorch's numbers once"),
        ({"d": np.zeros(3)}, r"expected d \(2,\), found d \(3,\)"),
        ({"e": np.zeros(3)}, r"expected hidden \(4, 4\), found e \(3,\)"),
    ],
)
def test_a_wrong_from_torch_is_described(changed: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_layout("actor", TENSORS, tree("hidden", "c", "out", "d"), lambda *x: transposed(*x) | changed)
