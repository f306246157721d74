"""Our twins with finite actions, configured like the original d3rlpy 2.8.1: weights, updates, actions and defaults."""

import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from corl_torch.discrete import bc as discrete_bc
from corl_torch.discrete import bcq as discrete_bcq
from corl_torch.discrete import cql as discrete_cql
from corl_torch.discrete import sac as discrete_sac
from corl_torch.online import dqn
from parity_tests.reference.common import (
    ACTION_DIM,
    ROWS,
    STATE_DIM,
    assert_same_actions,
    assert_same_weights,
    same_draws,
)
from parity_tests.reference.genuine.library import (
    BATCH_SIZE,
    HIDDEN,
    OF_CRITICS,
    as_theirs,
    assert_same_updates,
    created,
    names_of,
    quantile_factory,
)
from shared.data.transitions import Batch
from shared.runs.encoders import FILTERS, NO_ENCODER

pytestmark = pytest.mark.d3rlpy


SMALL_QUANTILES: dict[str, dict[str, Any]] = {
    "qr": {"critic": "qr", "n_quantiles": 5},
    "iqn": {"critic": "iqn", "n_quantiles": 7, "n_greedy_quantiles": 4, "embed_size": 9},
}


def renamed(d3rlpy: Any, config: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Critic settings for finite actions under the library's names, including its factories."""
    of_factories = ("encoder", "hidden_dims", "adam_eps", *OF_CRITICS)
    others = {name: value for name, value in settings.items() if name not in of_factories}
    found = as_theirs(getattr(d3rlpy.algos, f"{config.name}Config"), config, others)
    if config.encoder == NO_ENCODER:
        encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=list(HIDDEN["critic"]))
    else:
        filters = list(map(list, FILTERS[config.encoder]))
        encoder = d3rlpy.models.PixelEncoderFactory(filters=filters, feature_size=config.hidden_dims[-1])
        found["observation_scaler"] = d3rlpy.preprocessing.PixelObservationScaler()
    if config.name == "DiscreteSAC":
        return found | {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder}
    found |= {"encoder_factory": encoder, "optim_factory": d3rlpy.optimizers.AdamFactory(eps=config.adam_eps)}
    return found | quantile_factory(d3rlpy, config)


@pytest.mark.parametrize("name", ["DQN", "DoubleDQN"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"target_update_period": 3, "learning_rate": 1e-2},
        {"target_update_period": 1, "learning_rate": 1e-2, "discount": 0.9},
        {"target_update_period": 2, "learning_rate": 1e-2, "n_critics": 3, "adam_eps": 3e-4},
        {"target_update_period": 3, "learning_rate": 1e-2, "critic": "qr"},
        {"target_update_period": 3, "learning_rate": 1e-2, "critic": "iqn", "n_quantiles": 64},
        {"target_update_period": 3, "learning_rate": 1e-2, "n_critics": 3, **SMALL_QUANTILES["qr"]},
        {"target_update_period": 3, "learning_rate": 1e-2, "n_critics": 3, **SMALL_QUANTILES["iqn"]},
    ],
)
def test_dqn(d3rlpy: Any, dataset: Batch, name: str, settings: dict[str, Any]) -> None:
    """Weights, logs, targets, actions and epsilon-greedy exploration are equal."""
    choices = dataset._replace(actions=dataset.actions.argmax(1), rewards=3 * dataset.rewards)
    config = dqn.TrainConfig(
        device="cpu", batch_size=BATCH_SIZE, hidden_dims=HIDDEN["critic"], double=name == "DoubleDQN", **settings
    )
    same_draws()
    theirs = created(d3rlpy, f"{name}Config", (), **renamed(d3rlpy, config, settings))
    same_draws()
    trainer = dqn.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    ours = [*trainer.critic.members, *trainer.critic_target.members]
    networks = [*theirs.impl.modules.q_funcs, *theirs.impl.modules.targ_q_funcs]
    assert_same_weights(ours, networks)
    assert_same_updates(d3rlpy, choices, dqn, trainer, theirs)
    assert_same_weights(ours, networks)
    observations = dataset.observations.numpy()
    assert_same_actions(trainer.act(observations), torch.as_tensor(theirs.predict(observations)))
    explorer = d3rlpy.algos.LinearDecayEpsilonGreedy(start_epsilon=0.9, end_epsilon=0.2, duration=40)
    schedule = dqn.TrainConfig(epsilon_start=0.9, epsilon_end=0.2, epsilon_steps=40)
    same_draws()
    explored = [explorer.sample(theirs, observations[step : step + 1], step + 1)[0] for step in range(60)]
    same_draws()
    draws = dqn.draw_exploration(60, ACTION_DIM)
    found = trainer.explore(observations[:60], *draws, dqn.epsilons(schedule, 0, 60))
    np.testing.assert_array_equal(found, explored)


# Settings for d3rlpy 2.8.1's deviations from the paper
DISCRETE_FAULTS = {
    "CQL": {"double": True},
    "BCQ": {"penalize_log_probs": True},
    "BC": {"penalize_log_probs": True},
    "SAC": {"huber": True},
}
# Variants of each algorithm's settings: several critics, targets that follow at once, other coefficients
DISCRETE: list[tuple[ModuleType, dict[str, Any]]] = [
    (discrete_cql, {}),
    (discrete_cql, {"target_update_period": 1, "learning_rate": 1e-2, "cql_alpha": 4.0}),
    (discrete_cql, {"target_update_period": 3, "learning_rate": 1e-2, "n_critics": 3, "adam_eps": 3e-4}),
    (discrete_cql, {"target_update_period": 3, "learning_rate": 1e-2, "critic": "qr"}),
    (discrete_cql, {"target_update_period": 3, "learning_rate": 1e-2, "critic": "iqn", "n_quantiles": 64}),
    (discrete_cql, {"target_update_period": 3, "learning_rate": 1e-2, "n_critics": 3} | SMALL_QUANTILES["qr"]),
    (discrete_cql, {"target_update_period": 3, "learning_rate": 1e-2, "n_critics": 3} | SMALL_QUANTILES["iqn"]),
    (discrete_bcq, {}),
    (
        discrete_bcq,
        {"target_update_period": 3, "learning_rate": 1e-2, "logit_penalty": 0.1, "likelihood_threshold": 0.6},
    ),
    (
        discrete_bcq,
        {"learning_rate": 1e-2, "n_critics": 3, "share_encoder": False, "adam_eps": 3e-4, "logit_penalty": 0.1},
    ),
    (discrete_bcq, {"target_update_period": 1, "learning_rate": 1e-2, "n_critics": 2, "discount": 0.9}),
    (discrete_bc, {}),
    (discrete_bc, {"learning_rate": 1e-2, "logit_penalty": 0.1, "adam_eps": 3e-4}),
    (discrete_sac, {}),
    (discrete_sac, {"target_update_period": 1, "critic_lr": 1e-2, "actor_lr": 3e-3, "initial_temperature": 0.2}),
    (discrete_sac, {"target_update_period": 3, "critic_lr": 1e-2, "n_critics": 3, "temperature_lr": 1e-2}),
    (discrete_sac, {"n_critics": 1, "temperature_lr": 0.0, "initial_temperature": 0.2, "discount": 0.9}),
]


# The same for images
IMAGES: list[tuple[ModuleType, dict[str, Any]]] = [
    (discrete_cql, {"learning_rate": 1e-2, "n_critics": 2, "target_update_period": 3}),
    (discrete_cql, {"learning_rate": 1e-2, **SMALL_QUANTILES["iqn"]}),
    (discrete_bcq, {"learning_rate": 1e-2, "n_critics": 2, "target_update_period": 3}),
    (discrete_bcq, {"learning_rate": 1e-2, "share_encoder": False}),
    (discrete_bc, {"learning_rate": 1e-2}),
    (discrete_sac, {"critic_lr": 1e-2, "actor_lr": 3e-3, "target_update_period": 3}),
]


def both_discrete(
    d3rlpy: Any, twin: ModuleType, settings: dict[str, Any], shape: Sequence[int] = (STATE_DIM,)
) -> tuple[Any, Any]:
    """Our fresh trainer, configured like the library, and the library's algorithm, from the same seed."""
    kind = twin.__name__.rpartition(".")[2].upper()
    given = {"batch_size": BATCH_SIZE, "hidden_dims": HIDDEN["critic"]} | DISCRETE_FAULTS[kind] | settings
    config = twin.TrainConfig(device="cpu", **given)
    same_draws()
    theirs = created(d3rlpy, f"{config.name}Config", (), shape, **renamed(d3rlpy, config, settings))
    same_draws()
    return twin.create_trainer(config, STATE_DIM if shape == (STATE_DIM,) else shape, ACTION_DIM, 1.0), theirs


def discrete_networks(trainer: Any, theirs: Any) -> tuple[list[nn.Module], list[nn.Module]]:
    """Our networks and the library's, in the same order; for an imitator on shared layers, only its last layer."""
    ours, modules, networks = [], theirs.impl.modules, []
    if hasattr(trainer, "critic"):
        ours += [*trainer.critic.members, *trainer.critic_target.members]
        networks += [*modules.q_funcs, *modules.targ_q_funcs]
    if hasattr(modules, "imitator"):
        imitator = modules.imitator
        own = getattr(trainer, "imitator", None) or trainer.actor
        ours.append(own)
        networks.append(imitator._fc if getattr(own, "share_encoder", False) else imitator)
    if hasattr(modules, "policy"):
        ours.append(trainer.actor)
        networks.append(modules.policy)
    return ours, networks


def assert_same_choices(trainer: Any, theirs: Any) -> None:
    """Checks that all weights are equal, and the temperature if there is one."""
    assert_same_weights(*discrete_networks(trainer, theirs))
    if hasattr(trainer, "log_temperature"):
        assert [trainer.log_temperature().tolist()] == [
            weight.item() for weight in theirs.impl.modules.log_temp.parameters()
        ]


@pytest.mark.parametrize(("twin", "settings"), DISCRETE)
def test_finite_actions(d3rlpy: Any, dataset: Batch, twin: ModuleType, settings: dict[str, Any]) -> None:
    """Weights, logs, targets and actions are equal."""
    choices = dataset._replace(actions=dataset.actions.argmax(1), rewards=3 * dataset.rewards)
    trainer, theirs = both_discrete(d3rlpy, twin, settings)
    assert_same_choices(trainer, theirs)
    assert_same_updates(d3rlpy, choices, twin, trainer, theirs)
    assert_same_choices(trainer, theirs)
    observations = dataset.observations.numpy()
    assert_same_actions(trainer.act(observations), torch.as_tensor(theirs.predict(observations)))


@pytest.mark.parametrize(("twin", "settings"), IMAGES)
@pytest.mark.parametrize(("encoder", "sides"), [("minatar", (6, 5)), ("nature", (44, 40))])
def test_images(
    d3rlpy: Any, dataset: Batch, twin: ModuleType, settings: dict[str, Any], encoder: str, sides: tuple[int, int]
) -> None:
    """With images as observations, weights, logs, targets and actions are equal."""
    shape = (3, *sides)
    settings = settings | {"encoder": encoder, "hidden_dims": (20,)}
    trainer, theirs = both_discrete(d3rlpy, twin, settings, shape)
    assert_same_choices(trainer, theirs)
    shown = (torch.randint(0, 256, (ROWS, *shape), dtype=torch.uint8) for _ in range(2))
    choices = Batch(next(shown), dataset.actions.argmax(1), 3 * dataset.rewards, next(shown), dataset.terminals)
    assert_same_updates(d3rlpy, choices, twin, trainer, theirs)
    assert_same_choices(trainer, theirs)
    images = choices.observations[:50].numpy()
    assert_same_actions(trainer.act(images), torch.as_tensor(theirs.predict(images)))


@pytest.mark.parametrize("twin", [discrete_cql, discrete_bcq, discrete_bc, discrete_sac])
def test_defaults_of_finite_actions(d3rlpy: Any, twin: ModuleType) -> None:
    """All defaults are the library's, except for how networks, scalers and optimisers are made."""
    config = twin.TrainConfig()
    theirs = vars(getattr(d3rlpy.algos, f"{config.name}Config")())
    made = ("_factory", "_scaler", "compile_graph", "transform")
    compared = {name: value for name, value in theirs.items() if not any(part in name for part in made)}
    # Its BC has a discount that nothing uses.
    compared.pop("gamma" if twin is discrete_bc else "", None)
    assert len(compared) >= 3
    for name, value in compared.items():
        assert getattr(config, names_of(config).get(name, name)) == value, name


def test_defaults_of_dqn(d3rlpy: Any) -> None:
    """Defaults of updates, explorer and loop are the library's; all other settings here are for runs."""
    config, theirs = dqn.TrainConfig(), d3rlpy.algos.DQNConfig()
    for name in ("batch_size", "learning_rate", "gamma", "n_critics", "target_update_interval"):
        assert getattr(config, names_of(config).get(name, name)) == getattr(theirs, name)
    explorer = d3rlpy.algos.LinearDecayEpsilonGreedy()
    loop = inspect.signature(d3rlpy.algos.DQN.fit_online).parameters
    for name in ("n_updates", "update_interval", "update_start_step", "eval_epsilon"):
        assert getattr(config, names_of(config).get(name, name)) == loop[name].default
    assert (config.max_timesteps, config.eval_freq) == (loop["n_steps"].default, loop["n_steps_per_epoch"].default)
    shares = dqn.epsilons(config, 0, 1_100_000)[[0, 499_999, 999_999, 1_099_999]]
    expected = [explorer.compute_epsilon(step) for step in (1, 500_000, 1_000_000, 1_100_000)]
    assert shares.tolist() == expected
