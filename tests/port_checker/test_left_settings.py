"""Settings under other projects' names, and settings of the ladder that a port does not have."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from parity_tests.engine.precision import both_in
from parity_tests.pairs import PAIRS
from port_checker.finding.answers import answer
from port_checker.finding.figures import wrong_in
from port_checker.finding.loading import load_module
from port_checker.finding.port import Port
from port_checker.finding.questions import questions
from port_checker.finding.settings import understood
from port_checker.finding.unread import distinct, unread
from tests.port_checker.conftest import PLAIN, PORTS, check_here, write_port

CQL = PORTS / "joint_cql.py"


def port_of(folder: Path, base: Path, name: str, *changes: tuple[str, str]) -> Port:
    return Port("port.py", load_module(write_port(folder, base, changes)), PAIRS[name])


def test_settings_go_by_any_of_their_names() -> None:
    read: set[str] = set()
    kind = PAIRS["cql"].jax.TrainConfig
    settings = understood(kind, "cql", SimpleNamespace(min_q_version=3), read)
    config = settings(kind(critic_lr=0.5, tau=0.25))
    # A file may compile by its config, or store it in a dict.
    assert hash(config) == hash(settings(kind(critic_lr=0.5, tau=0.25)))
    assert not read & {"critic_lr", "tau", "hidden_dim"}
    assert (config.qf_lr, config.soft_target_update_rate, config.min_q_version) == (0.5, 0.25, 3)
    assert read & {"critic_lr", "tau", "hidden_dim"} == {"critic_lr", "tau"}
    with pytest.raises(AttributeError, match="cql has no setting 'beta'"):
        _ = config.beta


def test_what_a_file_never_reads_is_known(tmp_path: Path) -> None:
    """The argument `delayed` says how often the policy learns."""
    port = port_of(tmp_path, PLAIN, "td3_bc", ("config.discount * jnp", "0.99 * jnp"))
    with both_in("float64"):
        assert unread(port, ("other",)) == {"discount"}


CLONES = """
import jax, jax.numpy as jnp, optax

def create_train_state(key, state_dim, action_dim):
    actor = jnp.zeros((state_dim, action_dim))
    return {"actor": actor, "actor_optimizer": optax.adam(3e-4).init(actor)}

def outputs(state, batch):
    return {"actor": jnp.tanh(batch.observations @ state["actor"])}

def actor_loss(actor, batch):
    return jnp.square(jnp.tanh(batch.observations @ actor) - batch.actions).mean()
"""


def test_a_port_of_vectors_is_asked_for_no_images(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(CLONES)
    port = Port("port.py", load_module(tmp_path / "port.py"), PAIRS["any_percent_bc"])
    with both_in("float64"):
        port.left = unread(port, ("images",))
    assert port.left == {"encoder", "crop_padding"}
    assert distinct(port, ("default", "images")) == ("default",)


WITHOUT_MULTIPLIER = (
    (', "log_alpha", "log_alpha_prime")', ', "log_alpha")'),
    ("    log_alpha_prime: Any\n", ""),
    ("    log_alpha_prime_optimizer: Any\n", ""),
    ("jnp.array(0.0), jnp.array(1.0))", "jnp.array(0.0))"),
    ("penalty(gap, state.log_alpha_prime, config)", "penalty(gap, 0.0, config)"),
)


@pytest.mark.thorough
def test_a_part_that_no_loss_moves_may_be_lacking(tmp_path: Path) -> None:
    port = port_of(tmp_path, CQL, "cql", *WITHOUT_MULTIPLIER)
    with both_in("float64"):
        for rung in ("weights", "update"):
            question = questions("cql", rung, ("default",))[0]
            assert wrong_in(rung, answer(port, question), question.expected) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "left", "status"),
    [
        ((("config.discount * jnp", "0.99 * jnp"),), "discount", 0),
        # It has to respect any setting that it reads.
        ((("config.discount * jnp", "min(config.discount, 0.95) * jnp"),), "", 1),
        ((("config.discount * jnp", "0.98 * jnp"),), "", 1),
    ],
)
def test_fixed_settings_are_let_pass_and_told(
    changes: tuple[tuple[str, str], ...], left: str, status: int, tmp_path: Path
) -> None:
    found, told = check_here(write_port(tmp_path, PLAIN, changes), "td3_bc")
    assert found == status, told
    line = "settings    left at their defaults, since port.py never reads them: "
    assert (line + f"{left}\n" in told) if left else (line not in told), told


SIZES = ("[state_dim", "[both")


@pytest.mark.thorough
def test_a_port_as_wide_as_cql_of_old_holds(tmp_path: Path) -> None:
    """It is checked at its own width, from the first rung on."""
    path = write_port(tmp_path, CQL, [(f"{inputs}, *[config.hidden_dim]", f"{inputs}, *[256]") for inputs in SIZES])
    status, told = check_here(path, "cql", "default")
    assert status == 0, told
    assert "since port.py never reads them: hidden_dim\n" in told
