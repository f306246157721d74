"""The checker's diagnoses of mistakes that are in no library: each sentence points to the wrong expression."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parity_tests.engine.caches import forget
from parity_tests.pairs import PAIRS
from port_checker.explaining import naming
from port_checker.explaining.mechanical import candidates
from port_checker.explaining.probes import probe
from port_checker.explaining.reference import forget_references
from tests.port_checker.conftest import AWAC, PLAIN, ROOT

pytestmark = pytest.mark.thorough

TARGETS = '(state["critic_1_target"], state["critic_2_target"])'
VALUES = "values((critic_1, critic_1), batch.observations, actions)[0]"
ACTOR_STEP = 'ADAM.update(gradient, state["actor_optimizer"]'
STEP = 'change, moments = ADAM.update(gradient, state["critics_optimizer"]'
DECAYED = (
    ("optax.adam(3e-4)", "optax.adamw(3e-4, weight_decay=1e-2)"),
    (STEP, f"{STEP}, critics"),
    (ACTOR_STEP, f'{ACTOR_STEP}, state["actor"]'),
)

# By the mistake: the file, its changes, the rung that fails, and the diagnosis
MISTAKES: dict[str, tuple[Path, tuple[tuple[str, str], ...], str, tuple[str, ...]]] = {
    # ---- losses
    "|mean q| for mean |q|": (
        PLAIN,
        (("jnp.abs(q).mean()", "jnp.abs(q.mean())"),),
        "loss",
        ("  * `abs` after the mean, not before it (corl_jax/td3_bc.py:", "    + jnp.abs(q.mean())"),
    ),
    "discount squared": (
        PLAIN,
        (("config.discount * jnp", "config.discount**2 * jnp"),),
        "loss",
        ("  * 0.9801 (discount squared) for 0.99 (corl_jax/td3_bc.py:",),
    ),
    "terminals ignored": (
        PLAIN,
        (("jnp.where(batch.terminals > 0, 0.0, next_q)", "next_q"),),
        "loss",
        ("  * `batch.terminals` left out (corl_jax/td3_bc.py:", "    - 1.0 - batch.terminals\n    + 1.0"),
    ),
    "one critic in the target": (
        PLAIN,
        ((TARGETS, TARGETS.replace("critic_2", "critic_1")),),
        "loss",
        ("  * `minimum` left out (corl_jax/td3_bc.py:", "    + critic_1(batch.next_observations, next_actions)"),
    ),
    "online critics in the target": (
        PLAIN,
        ((TARGETS, TARGETS.replace("_target", "")),),
        "loss",
        ("`critic_1` for `critic_1_target`", "`critic_2` for `critic_2_target`"),
    ),
    "two terms with each other's weight": (
        PLAIN,
        (("jnp.mean((actions - batch.actions) ** 2) - config.alpha * q.mean() / scale",
          "config.alpha * jnp.mean((actions - batch.actions) ** 2) - q.mean() / scale"),),
        "loss",
        ("`-weight * q.mean()` counts 0.4 times as much and `square(actions - batch.actions).mean()` counts 2.5 ",),
    ),
    "(B, B)": (
        PLAIN,
        (("batch.actions) - target).mean() * 2", "batch.actions)[..., None] - target).mean() * 2"),),
        "loss",
        ("  * `q1 - target` is (B, B) (corl_jax/td3_bc.py:",),
    ),
    "current states in the target": (
        PLAIN,
        (("batch.next_observations, actions).min(0)", "batch.observations, actions).min(0)"),),
        "loss",
        ("  * `batch.observations` for `batch.next_observations` (corl_jax/td3_bc.py:",),
    ),
    "weights normalised": (
        AWAC,
        (("    mean, std = policy(state, actor, batch.observations)\n    log",
          "    weights = weights / weights.sum()\n    mean, std = policy(state, actor, batch.observations)\n    log"),),
        "loss",
        ("divided by its sum (corl_jax/awac.py:",),
    ),
    "variance for deviation": (
        AWAC,
        (("mean + std * noise", "mean + std**2 * noise"),),
        "loss",
        ("  * `square(std)` for `std` (corl_jax/awac.py:", "    - noise * std"),
    ),
    # ---- outputs
    "another activation": (
        PLAIN,
        (("jax.nn.relu(x", "jax.nn.leaky_relu(x"),),
        "forward",
        ("  Your forward (critic_1, critic_2) is just what", "  * `leaky_relu` for `relu` (corl_jax/td3_bc.py:"),
    ),
    # ---- gradients
    "actor detached before the critic": (
        PLAIN,
        ((f"q = {VALUES}", f"q = {VALUES.replace(', actions)', ', jax.lax.stop_gradient(actions))')}"),),
        "gradient",
        ("  * `actor(batch.observations)` is detached (corl_jax/td3_bc.py:", "- critic_1(batch.observations, actions)"),
    ),
    # ---- updates
    "weight decay": (
        PLAIN,
        DECAYED,
        "update",
        ("the weight decay of `actor`, `critic_1`, `critic_2` is 0.01 in place of 0.",),
    ),
    "decay within the gradient": (
        PLAIN,
        ((STEP, f"gradient = jax.tree.map(lambda g, w: g + 1e-3 * w, gradient, critics)\n    {STEP}"),),
        "update",
        ("the weights of `critic_1`, `critic_2` times 0.001 are added to its gradient",),
    ),
    "gradient clipped": (
        PLAIN,
        (("optax.adam(3e-4)", "optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4))"),),
        "update",
        ("the gradient by `critic_1`, `critic_2` is cut to a norm of 0.5 before Adam is given it",),
    ),
    "another rate of forgetting": (
        PLAIN,
        (("optax.adam(3e-4)", "optax.adam(3e-4, b2=0.99)"),),
        "update",
        ("Adam's b2 for `critic_1`, `critic_2` is 0.99 in place of 0.999.",),
    ),
    "a learning rate": (
        PLAIN,
        (("optax.adam(3e-4)", "optax.adam(1e-3)"),),
        "update",
        ("the learning rate of `actor`, `critic_1`, `critic_2` is 0.001 in place of 0.0003.",),
    ),
    "a target that follows another target": (
        PLAIN,
        (('state[f"{name}_target"], state[name], config.tau',
          'state[f"{name}_target"], state["critic_1_target"] if name == "critic_2" else state[name], config.tau'),),
        "update",
        ("`critic_2_target`: moved towards `critic_1_target` as it is after the step",),
    ),
    "targets moved twice as fast": (
        PLAIN,
        (("t + tau * (s - t)", "t + 2 * tau * (s - t)"),),
        "update",
        ("`critic_1_target`, `critic_2_target`: moved at a rate of 0.01 in place of 0.005 (twice it).",),
    ),
    "the actor in each update": (
        PLAIN,
        (("    if delayed:", "    if True:"),),
        "update",
        ("`actor`: a step in update 31, in which the reference makes none.",),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def programs_are_forgotten() -> Iterator[None]:
    yield
    forget_references()
    forget()


@pytest.fixture(autouse=True)
def probes_may_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets an exception within a probe fail the test, instead of silently giving no diagnosis."""
    monkeypatch.setattr(naming, "_probed", probe)


@pytest.fixture
def told(checked: Callable[..., tuple[int, str]]) -> Callable[..., str]:
    """The diagnosis of a wrong port: a file with some of its text replaced."""

    def run(base: Path, *changes: tuple[str, str], algorithm: str = "td3_bc", settings: str = "default") -> str:
        status, printed = checked(base, *changes, algorithm=algorithm, settings=settings)
        assert status == 1, printed
        return printed

    return run


@pytest.mark.parametrize("name", MISTAKES)
def test_the_wrong_expression_is_told(told: Callable[..., str], name: str) -> None:
    path, changes, rung, sentences = MISTAKES[name]
    printed = told(path, *changes, algorithm="awac" if path == AWAC else "td3_bc")
    failed = [line.split()[0] for line in printed.splitlines() if " FAILS " in line]
    assert failed == [rung], printed
    assert [sentence for sentence in sentences if sentence not in printed] == [], printed
    assert "precision" not in printed


# In our own twins
IN_TWINS = {
    "iql": [("hp.inverse_temperature * adv", "adv", "  * `hp.inverse_temperature` left out (corl_jax/iql.py:")],
    "rebrac": [
        ("batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q",
         "(1.0 - batch.terminals) * (batch.rewards + hp.discount * next_q)",
         "  * `batch.rewards * (1.0 - batch.terminals)` for `batch.rewards` (corl_jax/rebrac.py:"),
        ("jnp.abs(q).mean()", "jnp.abs(q).max()", "  * `max` for `mean` (corl_jax/rebrac.py:"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"), [(name, *change) for name, changes in IN_TWINS.items() for change in changes]
)
def test_the_wrong_expression_is_told_in_other_algorithms(
    told: Callable[..., str], name: str, old: str, new: str, sentence: str
) -> None:
    printed = told(ROOT / "corl_jax" / f"{name}.py", (old, new), algorithm=name)
    assert sentence in printed, printed


def test_dropout_that_is_not_rescaled_is_told(told: Callable[..., str]) -> None:
    """Under the settings that have dropout."""
    masks = "None if noise.dropout is None else tuple((mask > 0).astype(float) for mask in noise.dropout)"
    changes = ("        return noise.dropout\n", f"        return {masks}\n")
    printed = told(ROOT / "corl_jax" / "iql.py", changes, algorithm="iql", settings="dropout")
    assert "  * `noise.dropout` taken as 1 where it is positive, else 0 (corl_jax/iql.py:" in printed, printed


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("jnp.where(batch.terminals > 0, 0.0, next_q)",
         "jnp.where(batch.terminals > 0, 0.3 * jnp.sin(5.0 * next_q), next_q)",
         "It may help: your critic_loss is wrong only in rows where `terminals` is 1."),
        ("- target).mean() * 2",
         '- target).mean() * 2 + jnp.sin(3.0 * policy(state["actor"], batch.observations, bound)).mean()',
         "It may help: your critic_loss changes with `actor`, the reference's does not."),
    ],
)  # fmt: skip
def test_what_no_single_change_explains_is_told_by_rows_and_inputs(
    told: Callable[..., str], old: str, new: str, sentence: str
) -> None:
    assert sentence in told(PLAIN, (old, new))


def test_the_first_number_that_is_lacking_is_told(told: Callable[..., str]) -> None:
    """If no change of one expression gives the numbers."""
    found = told(PLAIN, ("jnp.abs(q).mean()", "jnp.sqrt(jnp.mean(q**2) + 0.3 * jnp.cos(q).mean() ** 2)"))
    assert "your numbers hold all that" in found
    assert "weight = self.hp.alpha / stop_gradient(jnp.abs(q).mean())" in found, found


def test_the_first_update_that_differs_is_told(told: Callable[..., str]) -> None:
    """Targets that move all the way in the first updates, which no update from a warm state shows."""
    tau = 'jnp.where(state["critics_optimizer"][0].count < 3, 1.0, config.tau)'
    printed = told(PLAIN, ("state[name], config.tau", f"state[name], {tau}"))
    assert "the first update that differs is number 2, in `actor_target`, `critic_1_target`" in printed, printed
    assert "moved at a rate of 1 in place of 0.005" in printed


@pytest.mark.parametrize("group", ["actor_loss", "actor_loss by actor"])
def test_changes_by_machine_are_of_functions_that_a_loss_may_call(group: str) -> None:
    functions = {mutant.function for mutant in candidates(PAIRS["td3_bc"], "loss", group)}
    assert "TD3_BC.actor_loss" in functions
    assert not functions & {"TD3_BC.critic_loss", "TD3_BC.update", "Actor.__call__", "act", "draw_noise"}
