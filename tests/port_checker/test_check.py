"""`corl-twins check` as a user types it: right ports pass, mistakes are named, and the command line is parsed."""

import subprocess
import sys
from collections.abc import Callable

import jax
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

from parity_tests.engine.precision import both_in
from parity_tests.mutants.planted import Mistake, with_mistake
from parity_tests.pairs import PAIRS
from port_checker import check
from port_checker.arguments import parse_arguments
from port_checker.explaining.reference import forget_references
from port_checker.finding.answers import answer
from port_checker.finding.fields import Optimizer
from port_checker.finding.figures import TOLERANCES, compare, wrong_in
from port_checker.finding.port import OwnTwin
from port_checker.finding.questions import questions
from shared.commands.common import ended
from shared.errors import InputError
from shared.frameworks.twins import path_of
from tests.port_checker.conftest import AWAC, PLAIN, ROOT, check_here

# ---- right ports ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_functions_over_dicts_hold(capsys: pytest.CaptureFixture) -> None:
    """Kernels laid out as in PyTorch, both critics in one pass, one optimiser for both, sums in another order.

    The tests below climb with it under the default settings.
    """
    status = ended(check.main, [str(PLAIN), "--algorithm", "td3_bc", "--settings", "other"])
    printed = capsys.readouterr().out
    assert (status, printed.splitlines()[-1]) == (
        0,
        "plain_td3_bc.py is td3_bc: all checks pass under the settings 'other'",
    ), printed
    verdicts = [line.split()[:2] for line in printed.splitlines()[:-1]]
    assert verdicts == [[rung, "not" if rung == "draws" else "holds"] for rung in check.RUNGS]
    assert "\ndraws       not given\n" in printed


# A loss whose first argument's name is not a part's, a loss of held-out rows, rows beyond the dataset's
OTHER_FAMILIES = ("bcq", "model_based/dynamics", "model_based/mopo")


@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHER_FAMILIES)
def test_twins_of_other_families_hold(name: str) -> None:
    status, told = check_here(path_of("jax", name), name, "default")
    assert status == 0, told


def test_online_sac_is_sac() -> None:
    assert parse_arguments(["port.py", "--algorithm", "online/sac", "--settings", "a", "b"]).algorithm == "sac"


RATE = "_hp.learning_rate * jnp.minimum((_updates + 1.0) / _hp.warmup_steps, 1.0)"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rate", "right"),
    [
        ("optax.linear_schedule(0.0, _hp.learning_rate, _hp.warmup_steps)(_updates + 1)", True),
        ("_hp.learning_rate * jnp.minimum((_updates + 1) / (_hp.warmup_steps + 1), 1.0)", False),
    ],
)
def test_a_count_may_be_divided(rate: str, right: bool) -> None:
    """Optax counts in int32, which JAX divides in single precision."""
    changed = Mistake("dt", "rate", "update", "learning_rate", RATE, rate)
    port = OwnTwin("dt", with_mistake(changed), PAIRS["dt"])
    with both_in("float64"):
        for rung in ("update", "log", "trajectory"):
            for question in questions("dt", rung, ("no dropout",)):
                compared = compare(rung, answer(port, question), question.expected).values()
                worst = max(value for values in compared for value in values.values())
                # Rounding, or a hundred times the tolerance
                assert worst < 1e-11 if right else worst > 100 * TOLERANCES[rung]


def test_a_train_state_has_made_as_many_steps_as_its_optimiser() -> None:
    weights = {"w": jax.numpy.zeros(3)}
    part = TrainState.create(apply_fn=None, params=weights, tx=optax.adam(1e-3))
    state = Optimizer("actor", ("actor",)).with_moments({"actor": part}, weights, weights, np.asarray(30))
    assert (state["actor"].step, state["actor"].opt_state[0].count) == (30, 30)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("optimiser", "right"),
    [
        ("optax.chain(optax.trace(MOMENTUM), optax.scale(-_lr))", True),
        ("optax.sgd(_lr, momentum=0.8)", False),
    ],
)
def test_momentum_is_handed_over_and_read(optimiser: str, right: bool) -> None:
    """Gradient descent has one moment, and does not count steps."""
    changed = Mistake("awr", "sgd", "update", "", "optax.sgd(_lr, momentum=MOMENTUM)", optimiser)
    port = OwnTwin("awr", with_mistake(changed), PAIRS["awr"])
    with both_in("float64"):
        (question, *_) = questions("awr", "update", ("default",))
        assert bool(wrong_in("update", answer(port, question), question.expected)) != right


def test_an_optimiser_without_momentum_is_refused() -> None:
    part, (trace, scale) = {"w": jax.numpy.zeros(3)}, optax.sgd(0.1, momentum=0.9).init({"w": jax.numpy.zeros(2)})
    with pytest.raises(InputError, match=r"optax\.sgd with the momentum of actor"):
        Optimizer("actor_optimizer", ("actor",)).with_momentum({"actor_optimizer": (trace, scale)}, part)
    with pytest.raises(InputError, match=r"optax\.sgd with the momentum of actor"):
        Optimizer("actor_optimizer", ("actor",)).with_momentum({"actor_optimizer": optax.sgd(0.1).init(part)}, part)


# ---- mistakes in ports that are not our twins ----------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "rung", "said"),
    [
        ("max_action * jnp.tanh(mlp(layers, observations))", "max_action * mlp(layers, observations)", "forward",
         "  * `tanh` left out (corl_jax/td3_bc.py:"),
        ("jax.lax.stop_gradient(jnp.abs(q).mean())", "jnp.abs(q).mean()", "gradient",
         "  * missing stop_gradient (corl_jax/td3_bc.py:"),
        ("optax.adam(3e-4)", "optax.adam(3e-4, eps=1e-5)", "update",
         "  * Adam's epsilon (corl_jax/td3_bc.py:"),
        ('actor_loss)(state["actor"], critics[0]', 'actor_loss)(state["actor"], before', "update",
         "the gradient of `actor_loss` by `actor` is taken at `critic_1` as it was before its step"),
    ],
)  # fmt: skip
def test_a_mistake_in_another_style_is_told(checked: Callable, old: str, new: str, rung: str, said: str) -> None:
    changes = [(old, new)]
    if "before" in new:
        changes.append(('    critics = state["critic_1"], state["critic_2"]\n', '    before = state["critic_1"]\n'
                        '    critics = state["critic_1"], state["critic_2"]\n'))  # fmt: skip
    status, printed = checked(PLAIN, *changes)
    failed = [line.split()[0] for line in printed.splitlines() if " FAILS " in line]
    assert (status, failed) == (1, [rung]), printed
    assert said in printed, printed


@pytest.mark.thorough
def test_a_mistake_is_found_where_jax_keeps_its_lines_elsewhere(
    checked: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("jax._src.source_info_util.user_frames")
    forget_references()
    status, printed = checked(
        PLAIN, ("batch.next_observations, actions).min(0)", "batch.next_observations, actions).max(0)")
    )
    assert status == 1
    assert "loss        FAILS" in printed
    assert "It may help: install the JAX of constraints.txt" in printed


@pytest.mark.thorough
def test_a_wrong_metric_is_told_beside_one_that_is_not_logged(checked: Callable) -> None:
    status, printed = checked(PLAIN, ('metrics = {"critic_loss": loss}', 'metrics = {"critic_loss": 3.0 * loss}'))
    assert status == 1
    assert "Your log (critic_loss): no known mistake gives these numbers." in printed
    assert "It may help: `critic_loss`: your numbers are the reference's times 3." in printed


@pytest.mark.thorough
def test_two_mistakes_in_two_losses_are_both_told(checked: Callable) -> None:
    status, printed = checked(
        AWAC,
        ("(1.0 - batch.terminals)", "batch.terminals"),
        (".sum(axis=-1)\n    assert log", ".mean(axis=-1)\n    assert log"),
        algorithm="awac",
    )
    assert status == 1
    assert "Your loss (critic_loss) is just what" in printed
    assert "* `1.0` left out (corl_jax/awac.py:" in printed
    assert "Your loss (actor_loss) is just what" in printed
    assert "* `mean` for `sum` (corl_jax/awac.py:" in printed


DRAWS = """
def draw_noise(key, step, config, dataset_size, action_dim):
    keys = jax.random.split(key)
    rows = jax.random.choice(keys[0], dataset_size, (config.batch_size,))
    return rows, {"target": jax.random.normal(keys[1], (config.batch_size, action_dim))}


def update(state"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("", "", ["  Your draws (indices, noise.target) is just what the reference gives with this mistake in it.",
                  "  * same noise at every update (corl_jax/td3_bc.py:"]),
        ("split(key)", "split(jax.random.fold_in(key, step // 2))",
         ["  Your draws (indices, noise.target): no known mistake gives these numbers.",
          "  It may help: updates draw what others drew: fold `step` into the key."]),
    ],
)  # fmt: skip
def test_draws_that_are_given_are_checked(checked: Callable, old: str, new: str, told: list[str]) -> None:
    status, printed = checked(PLAIN, ("\ndef update(state", DRAWS.replace(old, new)))
    assert status == 1
    below = printed[printed.index("\ndraws  ") :]
    assert all(f"\n{line}" in below for line in told), printed


@pytest.mark.thorough
def test_an_unknown_mistake_is_not_given_a_name(checked: Callable) -> None:
    """The checker only reports what the numbers themselves show."""
    status, printed = checked(PLAIN, ("- target).mean() * 2", "- target).mean() * 6"))
    assert status == 1
    assert "no known mistake gives these numbers" in printed
    assert "your numbers are the reference's times 3" in printed
    assert "  * " not in printed


@pytest.mark.thorough
def test_single_precision_is_recognised(checked: Callable) -> None:
    change = ("    return x @ last", "    x = x.astype(jnp.float32)\n    return x @ last")
    status, printed = checked(PLAIN, change)
    assert status == 1
    assert "single precision" in printed


# ---- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py", "--algorithm", "td3_bc"], "there is no file nowhere.py: give the .py file with your port"),
        ([str(PLAIN)], "give a file and its --algorithm, or --template"),
        ([str(PLAIN), "--algorithm", "ppo"], "unknown algorithm 'ppo'; no known name is similar"),
        ([str(PLAIN), "--algorithm", "td3_bc", "--settings", "fast"], "choose from 'default', 'other'"),
    ],
)
def test_a_bad_command_line_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert ended(check.main, arguments) == 2
    assert message in capsys.readouterr().err


def test_help_says_that_the_file_is_executed() -> None:
    command = [sys.executable, "-m", "shared", "check", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "THE FILE IS EXECUTED" in " ".join(done.stdout.split())
