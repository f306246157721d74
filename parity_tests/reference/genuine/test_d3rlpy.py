"""The genuine d3rlpy 2.8.1 and our twins in its form: the same weights from a seed, and six equal updates.

`make test-d3rlpy` installs the library; without it these tests are skipped.
"""

import inspect
import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corl_torch import bcq, bear, crr, plas, prdc
from corl_torch.discrete import bc as discrete_bc
from corl_torch.discrete import bcq as discrete_bcq
from corl_torch.discrete import cql as discrete_cql
from corl_torch.discrete import sac as discrete_sac
from corl_torch.evaluation import fqe
from corl_torch.online import ddpg, dqn, td3
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_actions,
    assert_same_log,
    assert_same_weights,
    columns_of,
    same_draws,
)
from shared.data.measures import find_episodes
from shared.data.transitions import Batch, SarsaBatch, extract_transitions
from shared.frameworks.torch_data import take
from shared.runs.valuation import DatasetEvaluator

pytestmark = pytest.mark.d3rlpy

BATCH_SIZE = 32
HIDDEN = {"actor": (40, 30), "critic": (50, 20), "imitator": (64, 48)}
# What d3rlpy 2.8.1 does in place of the paper
FAULTS: dict[str, Any] = {"vae_tanh": False, "copy_target_policy": False}


def created(d3rlpy: Any, config: str, networks: tuple[str, ...], **settings: Any) -> Any:
    """The library's algorithm with small networks, drawn from torch's generator."""
    factory = d3rlpy.models.VectorEncoderFactory
    encoders = {f"{part}_encoder_factory": factory(hidden_units=list(HIDDEN[part])) for part in networks}
    algorithm = getattr(d3rlpy.algos, config)(batch_size=BATCH_SIZE, **encoders, **settings).create(device="cpu:0")
    algorithm.create_impl((STATE_DIM,), ACTION_DIM)
    return algorithm


def batch_of(d3rlpy: Any, dataset: Batch) -> Any:
    """A batch as the library draws and takes it; what its algorithms do not read repeats another column."""
    s, a, r, s2, d = columns_of(dataset, BATCH_SIZE)
    if a.ndim == 1:
        a = a[:, None].float()
    interval: Tensor = torch.ones(BATCH_SIZE, 1)
    return d3rlpy.torch_utility.TorchMiniBatch(s, a, r, s2, a, r, d, interval, "cpu:0")


def assert_same_updates(d3rlpy: Any, dataset: Batch, twin: ModuleType, trainer: Any, theirs: Any) -> None:
    """Six updates of both, from equal draws, log the same."""
    # The library's own `update` does so too: it may have acted since.
    theirs.impl.modules.set_train()
    same_draws()
    logged = [theirs.impl.inner_update(batch_of(d3rlpy, dataset), step) for step in range(UPDATES)]
    # BEAR's log calls the VAE's loss otherwise than BCQ's and PLAS's do.
    own = "imitator" if twin is discrete_bcq else "vae"
    expected = [{name.replace("imitator", own): value for name, value in log.items()} for log in logged]
    same_draws()
    logs = []
    for _ in range(UPDATES):
        # Whether the next update is one of the VAE alone, or one of the warm-up, for the twins that have such
        phase = [getattr(trainer, name) for name in ("pretrains", "warms_up") if hasattr(trainer, name)]
        sizes = (ROWS,) if twin in (ddpg, dqn) or "discrete" in twin.__name__ else (ROWS, ACTION_DIM)
        indices, noise = twin.draw_noise(trainer.hp, *sizes, CPU, *phase)
        logs.append(trainer.update(take(dataset, indices), noise))
    if twin is discrete_sac:
        # The library logs nothing of the temperature and the entropy.
        logs = [{name: log[name] for name in ("critic_loss", "actor_loss")} for log in logs]
    assert_same_log(logs, expected)


def plas_networks(trainer: plas.PLAS) -> list[nn.Module]:
    """Ours, in the order in which they are drawn."""
    networks = [trainer.actor.latent, trainer.actor_target.latent]
    networks += [*trainer.critics.members, *trainer.critics_target.members, trainer.encoder, trainer.decoder]
    changes = trainer.actor.perturbation, trainer.actor_target.perturbation
    return networks + [change for change in changes if change is not None]


def their_plas_networks(algorithm: Any) -> list[nn.Module]:
    """The library's, in the same order."""
    modules = algorithm.impl.modules
    networks = [modules.policy, modules.targ_policy, *modules.q_funcs, *modules.targ_q_funcs]
    networks += [modules.vae_encoder, modules.vae_decoder]
    return networks + ([modules.perturbation, modules.targ_perturbation] if hasattr(modules, "perturbation") else [])


@pytest.mark.parametrize("perturbation", [False, True], ids=["PLAS", "PLAS+P"])
@pytest.mark.parametrize(("warm", "lam", "n_critics"), [(0, 0.75, 2), (3, 0.3, 3), (6, 1.0, 2)])
def test_plas(d3rlpy: Any, dataset: Batch, warm: int, lam: float, n_critics: int, perturbation: bool) -> None:
    """Weights, logs, targets and actions, in the VAE's updates and in those after them."""
    name = "PLASWithPerturbationConfig" if perturbation else "PLASConfig"
    shared: dict[str, Any] = {"lam": lam, "n_critics": n_critics}
    if perturbation:
        shared["action_flexibility"] = 0.3
    config = plas.TrainConfig(
        device="cpu",
        batch_size=BATCH_SIZE,
        vae_iterations=warm,
        actor_hidden_dims=HIDDEN["actor"],
        critic_hidden_dims=HIDDEN["critic"],
        vae_hidden_dims=HIDDEN["imitator"],
        perturbation=perturbation,
        **shared,
        **FAULTS,
    )
    same_draws()
    theirs = created(d3rlpy, name, ("actor", "critic", "imitator"), warmup_steps=warm, **shared)
    same_draws()
    trainer = plas.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    assert_same_weights(plas_networks(trainer), their_plas_networks(theirs))
    assert_same_updates(d3rlpy, dataset, plas, trainer, theirs)
    assert_same_weights(plas_networks(trainer), their_plas_networks(theirs))
    observations = dataset.observations.numpy()
    assert_same_actions(trainer.act(observations), torch.as_tensor(theirs.predict(observations)))


@pytest.mark.parametrize(("warm", "lam", "n_critics", "samples"), [(0, 0.75, 2, 7), (3, 0.3, 3, 4), (6, 1.0, 2, 3)])
def test_bcq(d3rlpy: Any, dataset: Batch, warm: int, lam: float, n_critics: int, samples: int) -> None:
    """Weights, logs, targets and actions, in the updates of the VAE alone and in those after them."""
    shared: dict[str, Any] = {"lam": lam, "n_critics": n_critics, "n_action_samples": samples}
    shared["action_flexibility"] = 0.3
    config = bcq.TrainConfig(
        device="cpu",
        batch_size=BATCH_SIZE,
        vae_iterations=warm,
        actor_hidden_dims=HIDDEN["actor"],
        critic_hidden_dims=HIDDEN["critic"],
        vae_hidden_dims=HIDDEN["imitator"],
        **shared,
        **FAULTS,
    )
    same_draws()
    theirs = created(d3rlpy, "BCQConfig", ("actor", "critic", "imitator"), rl_start_step=warm, **shared)
    same_draws()
    trainer = bcq.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    assert_same_weights(bcq_networks(trainer), their_bcq_networks(theirs))
    assert_same_updates(d3rlpy, dataset, bcq, trainer, theirs)
    assert_same_weights(bcq_networks(trainer), their_bcq_networks(theirs))
    observations = dataset.observations.numpy()
    same_draws()
    actions = torch.as_tensor(theirs.predict(observations))
    same_draws()
    codes = torch.randn(len(observations), samples, 2 * ACTION_DIM).numpy()
    assert_same_actions(trainer.act(observations, codes), actions)


def bcq_networks(trainer: bcq.BCQ) -> list[nn.Module]:
    """Ours, in the order in which they are drawn."""
    networks = [trainer.actor, trainer.actor_target, *trainer.critics.members, *trainer.critics_target.members]
    return [*networks, trainer.encoder, trainer.decoder]


def their_bcq_networks(algorithm: Any) -> list[nn.Module]:
    """The library's, in the same order."""
    modules = algorithm.impl.modules
    networks = [modules.policy, modules.targ_policy, *modules.q_funcs, *modules.targ_q_funcs]
    return [*networks, modules.vae_encoder, modules.vae_decoder]


@pytest.mark.parametrize("n_critics", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"weight_type": "exp", "advantage_type": "mean", "target_update_type": "hard", "target_update_interval": 4},
        {"weight_type": "binary", "advantage_type": "max", "target_update_type": "soft", "tau": 0.1},
        {"weight_type": "exp", "advantage_type": "max", "target_update_type": "soft", "max_weight": 1.01, "beta": 0.5},
    ],
)
def test_crr(d3rlpy: Any, dataset: Batch, n_critics: int, settings: dict[str, Any]) -> None:
    """Weights, logs, targets, and actions as it draws them."""
    config = crr.TrainConfig(
        device="cpu",
        batch_size=BATCH_SIZE,
        actor_hidden_dims=HIDDEN["actor"],
        critic_hidden_dims=HIDDEN["critic"],
        n_critics=n_critics,
        copy_target_policy=False,
        **settings,
    )
    same_draws()
    theirs = created(d3rlpy, "CRRConfig", ("actor", "critic"), n_critics=n_critics, **settings)
    same_draws()
    trainer = crr.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    ours = [trainer.actor, trainer.actor_target, *trainer.critics.members, *trainer.critics_target.members]
    modules = theirs.impl.modules
    networks = [modules.policy, modules.targ_policy, *modules.q_funcs, *modules.targ_q_funcs]
    assert_same_weights(ours, networks)
    assert_same_updates(d3rlpy, dataset, crr, trainer, theirs)
    assert_same_weights(ours, networks)
    observations = dataset.observations.numpy()
    same_draws()
    actions = torch.as_tensor(theirs.predict(observations))
    same_draws()
    normal = torch.randn(len(observations), config.n_action_samples, ACTION_DIM)
    waiting = torch.empty(len(observations), config.n_action_samples).exponential_()
    noise_of_acting = torch.cat([normal, -waiting.log()[..., None]], -1)
    assert_same_actions(trainer.act(observations, noise_of_acting.numpy()), actions)


@pytest.mark.parametrize(
    "settings",
    [
        {"warmup_steps": 0},
        {"warmup_steps": 3, "temp_lr": 1e-2, "initial_temperature": 1.0, "mmd_kernel": "gaussian", "mmd_sigma": 0.5},
        {"warmup_steps": 6, "lam": 0.3, "n_critics": 3},
        {"warmup_steps": 1, "initial_alpha": 50.0, "actor_lr": 1e-2, "lam": 1.0, "n_target_samples": 3},
        {"warmup_steps": 0, "initial_alpha": math.exp(10.0), "mmd_sigma": 5.0, "n_mmd_action_samples": 3},
    ],
)
def test_bear(d3rlpy: Any, dataset: Batch, settings: dict[str, Any]) -> None:
    """Weights, logs, temperature, the MMD's weight, targets and actions, in the warm-up and behind it."""
    samples = 7
    config = bear.TrainConfig(
        device="cpu",
        batch_size=BATCH_SIZE,
        actor_hidden_dims=HIDDEN["actor"],
        critic_hidden_dims=HIDDEN["critic"],
        vae_hidden_dims=HIDDEN["imitator"],
        vae_tanh=False,
        mmd_in_actor=False,
        n_action_samples=samples,
        **settings,
    )
    theirs_of = {ours: name for name, ours in config.REFERENCE_NAMES.items()}
    same_draws()
    theirs = created(
        d3rlpy,
        "BEARConfig",
        ("actor", "critic", "imitator"),
        n_action_samples=samples,
        **{"temp_learning_rate": config.temp_lr, "initial_temperature": config.initial_temperature}
        | {theirs_of.get(name, name): value for name, value in settings.items()},
    )
    same_draws()
    trainer = bear.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    ours = [trainer.actor, *trainer.critics.members, *trainer.critics_target.members, trainer.encoder, trainer.decoder]
    modules = theirs.impl.modules
    networks = [modules.policy, *modules.q_funcs, *modules.targ_q_funcs, modules.vae_encoder, modules.vae_decoder]
    assert_same_weights(ours, networks)
    assert_same_updates(d3rlpy, dataset, bear, trainer, theirs)
    assert_same_weights(ours, networks)
    for number, other in ((trainer.log_temp, modules.log_temp), (trainer.log_alpha, modules.log_alpha)):
        assert [number().tolist()] == [weight.item() for weight in other.parameters()]
    observations = dataset.observations.numpy()
    same_draws()
    actions = torch.as_tensor(theirs.predict(observations))
    same_draws()
    noise = torch.randn(len(observations), samples, ACTION_DIM).numpy()
    assert_same_actions(trainer.act(observations, noise), actions)


@pytest.mark.parametrize(
    ("twin", "settings"),
    [
        (td3, {}),
        (td3, {"policy_freq": 3, "n_critics": 3, "tau": 0.1}),
        (td3, {"policy_freq": 1, "policy_noise": 0.5, "noise_clip": 0.3}),
        (ddpg, {}),
        (ddpg, {"n_critics": 2, "tau": 0.1, "actor_lr": 1e-3}),
    ],
)
def test_td3_and_ddpg(d3rlpy: Any, dataset: Batch, twin: ModuleType, settings: dict[str, Any]) -> None:
    """Weights, logs, targets, actions, and those of the explorer."""
    config = twin.TrainConfig(
        device="cpu",
        batch_size=BATCH_SIZE,
        actor_hidden_dims=HIDDEN["actor"],
        critic_hidden_dims=HIDDEN["critic"],
        **settings,
    )
    theirs_of = {ours: name for name, ours in config.REFERENCE_NAMES.items()}
    renamed = {theirs_of.get(name, name): value for name, value in settings.items()}
    same_draws()
    theirs = created(d3rlpy, f"{config.name}Config", ("actor", "critic"), **renamed)
    same_draws()
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    ours = [trainer.actor, trainer.actor_target, *trainer.critics.members, *trainer.critics_target.members]
    modules = theirs.impl.modules
    networks = [modules.policy, modules.targ_policy, *modules.q_funcs, *modules.targ_q_funcs]
    assert_same_weights(ours, networks)
    assert_same_updates(d3rlpy, dataset, twin, trainer, theirs)
    assert_same_weights(ours, networks)
    observations = dataset.observations.numpy()
    assert_same_actions(trainer.act(observations), torch.as_tensor(theirs.predict(observations)))
    same_draws()
    explored = d3rlpy.algos.NormalNoise(std=0.3).sample(theirs, observations, 0)
    same_draws()
    normal = np.random.standard_normal((len(observations), ACTION_DIM))
    np.testing.assert_allclose(trainer.explore(0.3, observations, normal), explored, atol=1e-6)


SMALL_QUANTILES: dict[str, dict[str, Any]] = {
    "qr": {"critic": "qr", "n_quantiles": 5},
    "iqn": {"critic": "iqn", "n_quantiles": 7, "n_greedy_quantiles": 4, "embed_size": 9},
}


def renamed(d3rlpy: Any, config: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of critics of finite actions under the library's names, its factories among them."""
    theirs_of = {ours: theirs for theirs, ours in config.REFERENCE_NAMES.items()}
    of_factories = ("adam_eps", "critic", "n_quantiles", "n_greedy_quantiles", "embed_size")
    found = {theirs_of.get(key, key): value for key, value in settings.items() if key not in of_factories}
    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=list(HIDDEN["critic"]))
    if config.name == "DiscreteSAC":
        return found | {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder}
    found |= {"encoder_factory": encoder, "optim_factory": d3rlpy.optimizers.AdamFactory(eps=config.adam_eps)}
    if getattr(config, "critic", "mean") == "qr":
        found["q_func_factory"] = d3rlpy.models.QRQFunctionFactory(n_quantiles=config.n_quantiles)
    if getattr(config, "critic", "mean") == "iqn":
        sizes = {name: getattr(config, name) for name in ("n_quantiles", "n_greedy_quantiles", "embed_size")}
        found["q_func_factory"] = d3rlpy.models.IQNQFunctionFactory(**sizes)
    return found


@pytest.mark.parametrize("name", ["DQN", "DoubleDQN"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"target_update_interval": 3, "learning_rate": 1e-2},
        {"target_update_interval": 1, "learning_rate": 1e-2, "discount": 0.9},
        {"target_update_interval": 2, "learning_rate": 1e-2, "n_critics": 3, "adam_eps": 3e-4},
        {"target_update_interval": 3, "learning_rate": 1e-2, "critic": "qr"},
        {"target_update_interval": 3, "learning_rate": 1e-2, "critic": "iqn", "n_quantiles": 64},
        {"target_update_interval": 3, "learning_rate": 1e-2, "n_critics": 3, **SMALL_QUANTILES["qr"]},
        {"target_update_interval": 3, "learning_rate": 1e-2, "n_critics": 3, **SMALL_QUANTILES["iqn"]},
    ],
)
def test_dqn(d3rlpy: Any, dataset: Batch, name: str, settings: dict[str, Any]) -> None:
    """Weights, logs, targets, actions, and those of the explorer with its epsilon."""
    choices = dataset._replace(actions=dataset.actions.argmax(1), rewards=3 * dataset.rewards)
    config = dqn.TrainConfig(
        device="cpu", batch_size=BATCH_SIZE, hidden_dims=HIDDEN["critic"], double=name == "DoubleDQN", **settings
    )
    same_draws()
    theirs = created(d3rlpy, f"{name}Config", (), **renamed(d3rlpy, config, settings))
    same_draws()
    trainer = dqn.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    ours = [*trainer.critics.members, *trainer.critics_target.members]
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


# What d3rlpy 2.8.1 does in place of the paper
DISCRETE_FAULTS = {"CQL": {"double": True}, "BCQ": {"penalize_log_probs": True}, "BC": {"penalize_log_probs": True}}
DISCRETE_FAULTS["SAC"] = {"huber": True}
# Of each algorithm's settings: with several critics, with targets that follow at once, under other weights
DISCRETE: list[tuple[ModuleType, dict[str, Any]]] = [
    (discrete_cql, {}),
    (discrete_cql, {"target_update_interval": 1, "learning_rate": 1e-2, "cql_alpha": 4.0}),
    (discrete_cql, {"target_update_interval": 3, "learning_rate": 1e-2, "n_critics": 3, "adam_eps": 3e-4}),
    (discrete_cql, {"target_update_interval": 3, "learning_rate": 1e-2, "critic": "qr"}),
    (discrete_cql, {"target_update_interval": 3, "learning_rate": 1e-2, "critic": "iqn", "n_quantiles": 64}),
    (discrete_cql, {"target_update_interval": 3, "learning_rate": 1e-2, "n_critics": 3} | SMALL_QUANTILES["qr"]),
    (discrete_cql, {"target_update_interval": 3, "learning_rate": 1e-2, "n_critics": 3} | SMALL_QUANTILES["iqn"]),
    (discrete_bcq, {}),
    (discrete_bcq, {"target_update_interval": 3, "learning_rate": 1e-2, "beta": 0.1, "action_flexibility": 0.6}),
    (discrete_bcq, {"learning_rate": 1e-2, "n_critics": 3, "share_encoder": False, "adam_eps": 3e-4, "beta": 0.1}),
    (discrete_bcq, {"target_update_interval": 1, "learning_rate": 1e-2, "n_critics": 2, "discount": 0.9}),
    (discrete_bc, {}),
    (discrete_bc, {"learning_rate": 1e-2, "beta": 0.1, "adam_eps": 3e-4}),
    (discrete_sac, {}),
    (discrete_sac, {"target_update_interval": 1, "critic_lr": 1e-2, "actor_lr": 3e-3, "initial_temperature": 0.2}),
    (discrete_sac, {"target_update_interval": 3, "critic_lr": 1e-2, "n_critics": 3, "temp_lr": 1e-2}),
    (discrete_sac, {"n_critics": 1, "temp_lr": 0.0, "initial_temperature": 0.2, "discount": 0.9}),
]


def both_discrete(d3rlpy: Any, twin: ModuleType, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Ours in the form of the library, and the library's, fresh from one seed."""
    kind = twin.__name__.rpartition(".")[2].upper()
    given = {"batch_size": BATCH_SIZE, "hidden_dims": HIDDEN["critic"]} | DISCRETE_FAULTS[kind] | settings
    config = twin.TrainConfig(device="cpu", **given)
    same_draws()
    theirs = created(d3rlpy, f"{config.name}Config", (), **renamed(d3rlpy, config, settings))
    same_draws()
    return twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0), theirs


def discrete_networks(trainer: Any, theirs: Any) -> tuple[list[nn.Module], list[nn.Module]]:
    """Ours and the library's, in one order; of an imitator on shared layers its last layer."""
    ours, modules, networks = [], theirs.impl.modules, []
    if hasattr(trainer, "critics"):
        ours += [*trainer.critics.members, *trainer.critics_target.members]
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
    """Every weight, and the temperature where there is one."""
    assert_same_weights(*discrete_networks(trainer, theirs))
    if hasattr(trainer, "log_temp"):
        assert [trainer.log_temp().tolist()] == [weight.item() for weight in theirs.impl.modules.log_temp.parameters()]


@pytest.mark.parametrize(("twin", "settings"), DISCRETE)
def test_finite_actions(d3rlpy: Any, dataset: Batch, twin: ModuleType, settings: dict[str, Any]) -> None:
    """Weights, logs, targets and actions."""
    choices = dataset._replace(actions=dataset.actions.argmax(1), rewards=3 * dataset.rewards)
    trainer, theirs = both_discrete(d3rlpy, twin, settings)
    assert_same_choices(trainer, theirs)
    assert_same_updates(d3rlpy, choices, twin, trainer, theirs)
    assert_same_choices(trainer, theirs)
    observations = dataset.observations.numpy()
    assert_same_actions(trainer.act(observations), torch.as_tensor(theirs.predict(observations)))


@pytest.mark.parametrize("twin", [discrete_cql, discrete_bcq, discrete_bc, discrete_sac])
def test_defaults_of_finite_actions(d3rlpy: Any, twin: ModuleType) -> None:
    """All that the library's configuration has, but for how networks, scalers and optimisers are made."""
    config = twin.TrainConfig()
    theirs = vars(getattr(d3rlpy.algos, f"{config.name}Config")())
    made = ("_factory", "_scaler", "compile_graph", "transform")
    compared = {name: value for name, value in theirs.items() if not any(part in name for part in made)}
    # Its BC has a discount that nothing uses.
    compared.pop("gamma" if twin is discrete_bc else "", None)
    assert len(compared) >= 3
    for name, value in compared.items():
        assert getattr(config, config.REFERENCE_NAMES.get(name, name)) == value, name


def test_defaults_of_dqn(d3rlpy: Any) -> None:
    """Of updates, of its explorer and of its loop; what an algorithm here has besides is of its runs."""
    config, theirs = dqn.TrainConfig(), d3rlpy.algos.DQNConfig()
    for name in ("batch_size", "learning_rate", "gamma", "n_critics", "target_update_interval"):
        assert getattr(config, config.REFERENCE_NAMES.get(name, name)) == getattr(theirs, name)
    explorer = d3rlpy.algos.LinearDecayEpsilonGreedy()
    loop = inspect.signature(d3rlpy.algos.DQN.fit_online).parameters
    for name in ("n_updates", "update_interval", "update_start_step", "eval_epsilon"):
        assert getattr(config, config.REFERENCE_NAMES.get(name, name)) == loop[name].default
    assert (config.max_timesteps, config.eval_freq) == (loop["n_steps"].default, loop["n_steps_per_epoch"].default)
    shares = dqn.epsilons(config, 0, 1_100_000)[[0, 499_999, 999_999, 1_099_999]]
    expected = [explorer.compute_epsilon(step) for step in (1, 500_000, 1_000_000, 1_100_000)]
    assert shares.tolist() == expected


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"alpha": 10.0, "beta": 0.3, "policy_freq": 3, "n_critics": 3},
        {"policy_freq": 1, "n_critics": 1},
        # Two components of the actions: so few columns the library searches by a tree.
        {"action_dim": 2},
    ],
)
def test_prdc(d3rlpy: Any, dataset: Batch, settings: dict[str, Any]) -> None:
    """The library makes what it searches in its own `fit`: six updates of that from a seed, and actions."""
    settings = settings.copy()
    observations = dataset.observations[:, :8] if "action_dim" in settings else dataset.observations
    actions = dataset.actions[:, : settings.pop("action_dim", ACTION_DIM)]
    ends = torch.arange(1, ROWS + 1) % 100 == 0
    following = torch.where(ends[:, None], 0.0, observations.roll(-1, 0))
    rows = Batch(observations, actions, dataset.rewards, following, ends.float())
    config = prdc.TrainConfig(
        device="cpu",
        batch_size=BATCH_SIZE,
        actor_hidden_dims=HIDDEN["actor"],
        critic_hidden_dims=HIDDEN["critic"],
        **settings,
    )
    theirs_of = {ours: name for name, ours in config.REFERENCE_NAMES.items()}
    renamed = {theirs_of.get(name, name): value for name, value in settings.items()}
    factory = d3rlpy.models.VectorEncoderFactory
    encoders = {f"{part}_encoder_factory": factory(hidden_units=list(HIDDEN[part])) for part in ("actor", "critic")}
    theirs = d3rlpy.algos.PRDCConfig(batch_size=BATCH_SIZE, **encoders, **renamed).create(device="cpu:0")
    # The library's dataset draws when it is made.
    episodes = d3rlpy.dataset.MDPDataset(*(column.numpy() for column in (*rows[:3], rows.terminals)))
    same_draws()
    fitted = theirs.fit(
        episodes,
        n_steps=UPDATES,
        n_steps_per_epoch=1,
        show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )
    expected = [{key: value for key, value in log.items() if key.endswith("loss")} for _, log in fitted]
    same_draws()
    np.random.randint(ROWS)  # The library looks at one transition, to learn its sizes.
    trainer = prdc.create_trainer(config, observations.shape[1], actions.shape[1], 1.0)
    searched, logs = prdc.constrained(rows, config), []
    for _ in range(UPDATES):
        indices, noise = prdc.draw_noise(config, ROWS, actions.shape[1], CPU)
        logs.append(trainer.update(prdc.take_constrained(searched, indices), noise))
    assert_same_log(logs, expected)
    modules = theirs.impl.modules
    networks = [modules.policy, modules.targ_policy, *modules.q_funcs, *modules.targ_q_funcs]
    ours = [trainer.actor, trainer.actor_target, *trainer.critics.members, *trainer.critics_target.members]
    assert_same_weights(ours, networks)
    assert_same_actions(trainer.act(observations.numpy()), torch.as_tensor(theirs.predict(observations.numpy())))


def both_fqe(d3rlpy: Any, **settings: Any) -> tuple[fqe.FQE, Any, Any]:
    """Our critics, the library's and the policy of the library that it judges; the critics from one seed."""
    config = fqe.TrainConfig(device="cpu", batch_size=BATCH_SIZE, critic_hidden_dims=HIDDEN["critic"], **settings)
    theirs_of = {ours: name for name, ours in config.REFERENCE_NAMES.items()}
    renamed = {theirs_of.get(name, name): value for name, value in settings.items()}
    policy = created(d3rlpy, "TD3Config", ("actor", "critic"))
    # Actions that differ from state to state
    for parameter in policy.impl.modules.policy.parameters():
        parameter.data.mul_(2.0)
    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=list(HIDDEN["critic"]))
    settings_of_theirs = d3rlpy.ope.FQEConfig(batch_size=BATCH_SIZE, encoder_factory=encoder, **renamed)
    theirs = d3rlpy.ope.FQE(policy, settings_of_theirs, device="cpu:0")
    same_draws()
    theirs.create_impl((STATE_DIM,), ACTION_DIM)
    same_draws()
    trainer = fqe.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    return trainer, theirs, policy


@pytest.mark.parametrize("n_critics", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"target_update_interval": 1}, {"target_update_interval": 3}])
@pytest.mark.parametrize("other", [{}, {"discount": 0.9, "critic_lr": 1e-3}])
def test_fqe(d3rlpy: Any, dataset: Batch, settings: dict[str, int], other: dict[str, float], n_critics: int) -> None:
    """Weights, logs, targets and values; the policy's actions are those of the library, batch for batch."""
    trainer, theirs, policy = both_fqe(d3rlpy, n_critics=n_critics, **settings, **other)
    ours = [*trainer.critics.members, *trainer.critics_target.members]
    networks = [*theirs.impl.modules.q_funcs, *theirs.impl.modules.targ_q_funcs]
    assert_same_weights(ours, networks)
    assert_same_judgement(d3rlpy, dataset, trainer, theirs, policy)


def assert_same_judgement(d3rlpy: Any, dataset: Batch, trainer: fqe.FQE, theirs: Any, policy: Any) -> None:
    """Logs, weights and values of updates from equal critics, which judge the library's policy."""
    same_draws()
    logged = [theirs.impl.inner_update(batch_of(d3rlpy, dataset), step) for step in range(UPDATES)]
    same_draws()
    logs = []
    for _ in range(UPDATES):
        indices, noise = fqe.draw_noise(trainer.hp, ROWS, CPU)
        batch = take(dataset, indices)
        next_actions = torch.as_tensor(policy.predict(batch.next_observations.numpy()))
        logs.append(trainer.update(SarsaBatch(*batch, next_actions), noise))
    assert_same_log(logs, [{"critic_loss": log["loss"]} for log in logged])
    ours = [*trainer.critics.members, *trainer.critics_target.members]
    assert_same_weights(ours, [*theirs.impl.modules.q_funcs, *theirs.impl.modules.targ_q_funcs])
    observations, actions = dataset.observations.numpy(), dataset.actions.numpy()
    values = theirs.predict_value(observations, actions)
    np.testing.assert_array_equal(trainer.value(observations, actions), values)


def test_the_measures_of_fqe(d3rlpy: Any) -> None:
    """On episodes of 2 to 1,000 rows, of which terminals or time limits end some: those of the library's evaluators."""
    trainer, theirs, policy = both_fqe(d3rlpy, n_critics=2)
    rng = np.random.default_rng(0)
    lengths = [2, 300, 5, 1000, 40, 2]
    raw = {
        "observations": rng.normal(size=(sum(lengths), STATE_DIM)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (sum(lengths), ACTION_DIM)).astype(np.float32),
        "rewards": rng.normal(size=sum(lengths)).astype(np.float32),
        "terminals": np.zeros(sum(lengths), bool),
        "timeouts": np.zeros(sum(lengths), bool),
    }
    ends = np.cumsum(lengths) - 1
    raw["terminals"][ends[::2]], raw["timeouts"][ends[1::2]] = True, True
    buffer = d3rlpy.dataset.MDPDataset(**raw)
    threshold = float(np.median([episode.rewards.sum() for episode in buffer.episodes]))
    evaluators = d3rlpy.metrics
    expected = {
        "soft_opc": evaluators.SoftOPCEvaluator(threshold),
        "td_error": evaluators.TDErrorEvaluator(),
        "discounted_advantage": evaluators.DiscountedSumOfAdvantageEvaluator(),
        "average_value": evaluators.AverageValueEstimationEvaluator(),
        "action_difference": evaluators.ContinuousActionDiffEvaluator(),
    }
    transitions = extract_transitions(raw)
    actions, next_actions = (policy.predict(column) for column in (transitions.observations, transitions[3]))
    evaluator = DatasetEvaluator(
        SarsaBatch(*transitions, next_actions),
        actions,
        find_episodes(raw),
        threshold,
        discount=trainer.hp.discount,
        action_std=np.ones(ACTION_DIM, np.float32),
        fingerprint={},
    )
    found = evaluator(trainer.value)
    for name, measure in expected.items():
        assert found.measures[name] == pytest.approx(measure(theirs, buffer), rel=1e-6, abs=1e-7), name
    # The library takes this mean in single precision.
    first = evaluators.InitialStateValueEstimationEvaluator()(theirs, buffer)
    assert float(found.outcomes.mean()) == pytest.approx(first, rel=1e-5)
