"""Models saved by the original d3rlpy 2.8.1: our twins can load them, act as the library does, and resume training."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from corl_torch import bcq, bear, crr, iql, plas, prdc, td3_bc
from corl_torch.evaluation import fqe
from corl_torch.online import ddpg, dqn, td3
from parity_tests.reference.common import (
    ACTION_DIM,
    STATE_DIM,
    UPDATES,
    assert_same_actions,
    same_draws,
)
from parity_tests.reference.genuine.library import (
    BATCH_SIZE,
    FAULTS,
    HIDDEN,
    assert_same_updates,
    batch_of,
    created,
    quantile_factory,
)
from parity_tests.reference.genuine.test_finite import DISCRETE, assert_same_choices, both_discrete
from parity_tests.reference.genuine.test_fqe import assert_same_judgement, both_fqe
from shared.data.transitions import Batch

pytestmark = pytest.mark.d3rlpy

WIDTHS = {"actor_hidden_dims": HIDDEN["actor"], "critic_hidden_dims": HIDDEN["critic"]}
VAE = {"vae_hidden_dims": HIDDEN["imitator"], "vae_iterations": 0} | FAULTS
BEAR = {
    "vae_hidden_dims": HIDDEN["imitator"],
    "vae_tanh": False,
    "mmd_in_actor": False,
    "temperature_lr": 1e-4,
    "imitation_steps": 3,
}
ENCODERS = ("actor", "critic", "imitator")
# The twin, the library's configuration, the networks with other widths, settings that both have, and our other ones
MODELS: dict[str, tuple[ModuleType, str, tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "PLAS": (plas, "PLASConfig", ENCODERS, {"lam": 0.75}, WIDTHS | VAE),
    "PLAS+P": (plas, "PLASWithPerturbationConfig", ENCODERS, {"lam": 0.75}, WIDTHS | VAE | {"perturbation": True}),
    "BCQ": (bcq, "BCQConfig", ENCODERS, {"n_action_samples": 5}, WIDTHS | VAE),
    "BEAR": (bear, "BEARConfig", ENCODERS, {"initial_temperature": 0.5}, WIDTHS | BEAR),
    "CRR": (crr, "CRRConfig", ENCODERS[:2], {"weight_type": "exp", "target_update_type": "hard"}, WIDTHS),
    "DDPG, quantiles": (ddpg, "DDPGConfig", ENCODERS[:2], {"n_critics": 2}, WIDTHS | {"critic": "qr"}),
    "TD3, implicit quantiles": (td3, "TD3Config", ENCODERS[:2], {"n_critics": 3}, WIDTHS | {"critic": "iqn"}),
    "DDPG": (ddpg, "DDPGConfig", ENCODERS[:2], {"n_critics": 2}, WIDTHS),
    # PRDC's networks are TD3's; its own updates search a dataset, which another test covers.
    "PRDC": (prdc, "TD3Config", ENCODERS[:2], {"n_critics": 3}, WIDTHS),
    "TD3": (td3, "TD3Config", ENCODERS[:2], {"n_critics": 3}, WIDTHS),
    "TD3+BC": (td3_bc, "TD3PlusBCConfig", (), {}, {}),
    "IQL": (iql, "IQLConfig", (), {}, {}),
}
# The library has one name for the updates before the actor's first one; our names say what these updates train.
WARM: dict[str, dict[str, Any]] = {
    "PLAS": {"warmup_steps": 0},
    "PLAS+P": {"warmup_steps": 0},
    "BEAR": {"warmup_steps": 3},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_acts_here_as_there(d3rlpy: Any, dataset: Batch, name: str, tmp_path: Path) -> None:
    """The actions are equal, and so are further updates, if the twin is compared with the library."""
    twin, config_name, networks, shared, ours = MODELS[name]
    config = twin.TrainConfig(device="cpu", batch_size=BATCH_SIZE, **shared, **ours)
    same_draws()
    theirs = created(d3rlpy, config_name, networks, **shared, **WARM.get(name, {}), **quantile_factory(d3rlpy, config))
    for step in range(UPDATES):
        theirs.impl.inner_update(batch_of(d3rlpy, dataset), step)
    theirs.save_model(str(tmp_path / "model.pt"))
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    twin.load(trainer, str(tmp_path / "model.pt"))
    assert trainer.total_it == 0
    observations = dataset.observations.numpy()
    same_draws()
    expected = torch.as_tensor(theirs.predict(observations))
    same_draws()
    assert_same_actions(trainer.act(observations, *acting_noise(name, len(observations))), expected)
    if not networks or twin is prdc:
        return
    assert_same_updates(d3rlpy, dataset, twin, trainer, theirs)


@pytest.mark.parametrize("name", ["DQN", "DoubleDQN"])
def test_a_model_of_finite_actions_goes_on(d3rlpy: Any, dataset: Batch, name: str, tmp_path: Path) -> None:
    """Its one optimiser has another name in the file."""
    choices = dataset._replace(actions=dataset.actions.argmax(1))
    settings: dict[str, Any] = {"learning_rate": 1e-2, "target_update_interval": 3, "n_critics": 2}
    config = dqn.TrainConfig(
        device="cpu",
        batch_size=BATCH_SIZE,
        double=name == "DoubleDQN",
        learning_rate=1e-2,
        target_update_period=3,
        n_critics=2,
    )
    same_draws()
    theirs = created(d3rlpy, f"{name}Config", (), **settings)
    for step in range(UPDATES):
        theirs.impl.inner_update(batch_of(d3rlpy, choices), step)
    theirs.save_model(str(tmp_path / "model.pt"))
    trainer = dqn.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    dqn.load(trainer, str(tmp_path / "model.pt"))
    observations = dataset.observations.numpy()
    assert_same_actions(trainer.act(observations), torch.as_tensor(theirs.predict(observations)))
    assert_same_updates(d3rlpy, choices, dqn, trainer, theirs)


def test_a_judgement_goes_on(d3rlpy: Any, dataset: Batch, tmp_path: Path) -> None:
    """The critics of fitted Q evaluation are loaded with their optimiser's state."""
    trainer, theirs, policy = both_fqe(d3rlpy, n_critics=2, learning_rate=1e-3, target_update_period=4)
    for step in range(UPDATES):
        theirs.impl.inner_update(batch_of(d3rlpy, dataset), step)
    theirs.save_model(str(tmp_path / "model.pt"))
    fqe.load(trainer, str(tmp_path / "model.pt"))
    assert trainer.total_it == 0
    assert_same_judgement(d3rlpy, dataset, trainer, theirs, policy)


@pytest.mark.parametrize(("twin", "settings"), DISCRETE)
def test_a_model_that_learnt_to_choose_goes_on(
    d3rlpy: Any, dataset: Batch, twin: ModuleType, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Its single optimiser trains several networks, which may share layers."""
    choices = dataset._replace(actions=dataset.actions.argmax(1))
    _, theirs = both_discrete(d3rlpy, twin, settings)
    for step in range(UPDATES):
        theirs.impl.inner_update(batch_of(d3rlpy, choices), step)
    theirs.save_model(str(tmp_path / "model.pt"))
    trainer, _ = both_discrete(d3rlpy, twin, settings)
    twin.load(trainer, str(tmp_path / "model.pt"))
    assert_same_choices(trainer, theirs)
    observations = dataset.observations.numpy()
    assert_same_actions(trainer.act(observations), torch.as_tensor(theirs.predict(observations)))
    assert_same_updates(d3rlpy, choices, twin, trainer, theirs)


def acting_noise(name: str, rows: int) -> tuple[Any, ...]:
    """The library's draws for acting."""
    if name == "BCQ":
        return (torch.randn(rows, 5, 2 * ACTION_DIM).numpy(),)
    if name == "BEAR":
        return (torch.randn(rows, 100, ACTION_DIM).numpy(),)
    if name == "CRR":
        normal, waiting = torch.randn(rows, 4, ACTION_DIM), torch.empty(rows, 4).exponential_()
        return (torch.cat([normal, -waiting.log()[..., None]], -1).numpy(),)
    return ()


def test_iqls_deviation_is_the_librarys(d3rlpy: Any, dataset: Batch, tmp_path: Path) -> None:
    """The library stores another number, from which ours is computed."""
    theirs = created(d3rlpy, "IQLConfig", ())
    theirs.impl.modules.policy._logstd.data.normal_(0.0, 2.0)
    theirs.save_model(str(tmp_path / "model.pt"))
    trainer = iql.create_trainer(iql.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    iql.load(trainer, str(tmp_path / "model.pt"))
    expected = theirs.impl.modules.policy(dataset.observations).logstd[0]
    assert trainer.actor.log_std is not None
    torch.testing.assert_close(trainer.actor.log_std.data, expected.flatten())
