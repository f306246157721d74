"""Ports in PyTorch, written from the JAX twin: right ones pass, and mistakes are reported as for ports in JAX."""

from collections.abc import Callable
from pathlib import Path

import pytest

from parity_tests.engine.precision import both_in
from parity_tests.pairs import PAIRS
from port_checker import check
from port_checker.finding.torch_port import TorchPort
from tests.port_checker.conftest import ROOT, check_here

REBRAC = ROOT / "corl_torch" / "rebrac.py"
Checked = Callable[..., tuple[int, str]]


def test_our_own_twin_holds() -> None:
    pair = PAIRS["any_percent_bc"]
    with both_in("float64"):
        climbed = list(check.climb(TorchPort("bc", pair.torch, pair), ("default",)))
    assert [rung.rung for rung in climbed if rung.holds] == list(check.RUNGS)
    assert [rung.rung for rung in climbed if not rung.worst] == ["draws"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["iql", "discrete/cql", "finetune/spot", "awr", "prdc", "model_based/dynamics"])
def test_twins_with_more_to_them_hold(name: str) -> None:
    """Schedules, one moment for several parts, finite actions, a VAE; whole datasets, and a search among their rows."""
    status, told = check_here(Path(str(PAIRS[name].torch.__file__)), name, "default")
    assert status == 0, told


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "rung", "said"),
    [
        ("- hp.critic_bc_coef * distance", "+ hp.critic_bc_coef * distance", "loss",
         "* `+` for `-` (corl_jax/rebrac.py:"),
        ("(actor.parameters(), lr=hp.actor_lr)", "(actor.parameters(), lr=hp.actor_lr, eps=1e-5)", "update",
         "epsilon"),
        ("+ tau * new.data)", "+ (1.0 - tau) * new.data)", "update", "Your update ("),
        ("hp.policy_freq == 0", "hp.policy_freq == 1", "update", "Your update (actor"),
    ],
)  # fmt: skip
def test_a_mistake_is_found_and_told(checked: Checked, old: str, new: str, rung: str, said: str) -> None:
    status, told = checked(REBRAC, (old, new), algorithm="rebrac")
    failed = [line.split()[0] for line in told.splitlines() if " FAILS " in line]
    assert (status, failed) == (1, [rung]), told
    assert said in told, told


@pytest.mark.thorough
def test_a_mistake_in_a_search_among_rows_is_found(checked: Checked) -> None:
    twin = ROOT / "corl_torch" / "prdc.py"
    status, told = checked(twin, ("search_keys(batch.observations, actions, self.hp.state_weight)",
                                  "search_keys(batch.observations, actions, 1.0)"), algorithm="prdc")  # fmt: skip
    assert status == 1, told
    assert "* `state_weight` left out (corl_jax/prdc.py:" in told, told


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return square(q - target).mean(axis=1).sum()", "return square(q - target).mean(axis=1)",
         "critic_loss gives (2,): expected a tensor without axes"),
        ("self.critic_optimizer = torch.optim.Adam(critic", "self.critic_optimizer = torch.optim.Adam(self.actor",
         "no optimiser of the trainer steps critic: expected one among its attributes"),
        ("self.net = mlp(state_dim, hp.hidden_dim", "self.net = mlp(state_dim, hp.width",
         "create_trainer stops with AttributeError: rebrac has no setting 'width'"),
    ],
)  # fmt: skip
@pytest.mark.thorough
def test_what_is_expected_is_said(checked: Checked, old: str, new: str, message: str) -> None:
    status, told = checked(REBRAC, (old, new), algorithm="rebrac")
    assert status == 2, told
    assert message in told
