"""Our twins configured like the original d3rlpy 2.8.1: the same weights from a seed, and six equal updates."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from corl_torch import bcq, bear, crr, plas, prdc
from corl_torch.online import ddpg, sac, td3
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_actions,
    assert_same_log,
    assert_same_weights,
    same_draws,
)
from parity_tests.reference.genuine.library import (
    BATCH_SIZE,
    FAULTS,
    HIDDEN,
    OF_CRITICS,
    as_theirs,
    assert_same_updates,
    batch_of,
    created,
    quantile_factory,
)
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take

pytestmark = pytest.mark.d3rlpy


def plas_networks(trainer: plas.PLAS) -> list[nn.Module]:
    """Our networks, in the order in which they are drawn."""
    networks = [trainer.actor.latent, trainer.actor_target.latent]
    networks += [*trainer.critic.members, *trainer.critic_target.members, trainer.encoder, trainer.decoder]
    changes = trainer.actor.perturbation, trainer.actor_target.perturbation
    return networks + [change for change in changes if change is not None]


def their_plas_networks(algorithm: Any) -> list[nn.Module]:
    """The library's networks, in the same order."""
    modules = algorithm.impl.modules
    networks = [modules.policy, modules.targ_policy, *modules.q_funcs, *modules.targ_q_funcs]
    networks += [modules.vae_encoder, modules.vae_decoder]
    return networks + ([modules.perturbation, modules.targ_perturbation] if hasattr(modules, "perturbation") else [])


@pytest.mark.parametrize("perturbation", [False, True], ids=["PLAS", "PLAS+P"])
@pytest.mark.parametrize(("warm", "lam", "n_critics"), [(0, 0.75, 2), (3, 0.3, 3), (6, 1.0, 2)])
def test_plas(d3rlpy: Any, dataset: Batch, warm: int, lam: float, n_critics: int, perturbation: bool) -> None:
    """Weights, logs, targets and actions are equal, in the VAE's updates and after them."""
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
    """Weights, logs, targets and actions are equal, in the updates of the VAE alone and after them."""
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
    """Our networks, in the order in which they are drawn."""
    networks = [trainer.actor, trainer.actor_target, *trainer.critic.members, *trainer.critic_target.members]
    return [*networks, trainer.encoder, trainer.decoder]


def their_bcq_networks(algorithm: Any) -> list[nn.Module]:
    """The library's networks, in the same order."""
    modules = algorithm.impl.modules
    networks = [modules.policy, modules.targ_policy, *modules.q_funcs, *modules.targ_q_funcs]
    return [*networks, modules.vae_encoder, modules.vae_decoder]


@pytest.mark.parametrize("n_critics", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"weight_type": "exp", "advantage_type": "mean", "target_update_type": "hard", "target_update_period": 4},
        {"weight_type": "binary", "advantage_type": "max", "target_update_type": "soft", "tau": 0.1},
        {"weight_type": "exp", "advantage_type": "max", "target_update_type": "soft", "max_weight": 1.01}
        | {"advantage_temperature": 0.5},
    ],
)
def test_crr(d3rlpy: Any, dataset: Batch, n_critics: int, settings: dict[str, Any]) -> None:
    """Weights, logs, targets and drawn actions are equal."""
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
    renamed = as_theirs(d3rlpy.algos.CRRConfig, config, settings)
    theirs = created(d3rlpy, "CRRConfig", ("actor", "critic"), n_critics=n_critics, **renamed)
    same_draws()
    trainer = crr.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    ours = [trainer.actor, trainer.actor_target, *trainer.critic.members, *trainer.critic_target.members]
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
        {"imitation_steps": 0},
        {
            "imitation_steps": 3,
            "temperature_lr": 1e-2,
            "initial_temperature": 1.0,
            "mmd_kernel": "gaussian",
            "mmd_sigma": 0.5,
        },
        {"imitation_steps": 6, "lam": 0.3, "n_critics": 3},
        {"imitation_steps": 1, "initial_alpha": 50.0, "actor_lr": 1e-2, "lam": 1.0, "n_target_samples": 3},
        {"imitation_steps": 0, "initial_alpha": math.exp(10.0), "mmd_sigma": 5.0, "n_mmd_action_samples": 3},
    ],
)
def test_bear(d3rlpy: Any, dataset: Batch, settings: dict[str, Any]) -> None:
    """Weights, logs, temperature, the MMD's weight, targets and actions are equal, in the warm-up and after it."""
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
    entropy = {"temperature_lr": config.temperature_lr, "initial_temperature": config.initial_temperature}
    same_draws()
    theirs = created(
        d3rlpy,
        "BEARConfig",
        ("actor", "critic", "imitator"),
        n_action_samples=samples,
        **as_theirs(d3rlpy.algos.BEARConfig, config, entropy | settings),
    )
    same_draws()
    trainer = bear.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    ours = [trainer.actor, *trainer.critic.members, *trainer.critic_target.members, trainer.encoder, trainer.decoder]
    modules = theirs.impl.modules
    networks = [modules.policy, *modules.q_funcs, *modules.targ_q_funcs, modules.vae_encoder, modules.vae_decoder]
    assert_same_weights(ours, networks)
    assert_same_updates(d3rlpy, dataset, bear, trainer, theirs)
    assert_same_weights(ours, networks)
    for number, other in ((trainer.log_temperature, modules.log_temp), (trainer.log_alpha, modules.log_alpha)):
        assert [number().tolist()] == [weight.item() for weight in other.parameters()]
    observations = dataset.observations.numpy()
    same_draws()
    actions = torch.as_tensor(theirs.predict(observations))
    same_draws()
    noise = torch.randn(len(observations), samples, ACTION_DIM).numpy()
    assert_same_actions(trainer.act(observations, noise), actions)


QR: dict[str, Any] = {"critic": "qr", "n_quantiles": 5}
# With different numbers the library stops, because it takes an update's quantiles for those whose mean the policy
# raises.
IQN: dict[str, Any] = {"critic": "iqn", "n_quantiles": 7, "n_greedy_quantiles": 7, "embed_size": 9}


@pytest.mark.parametrize(
    ("twin", "settings"),
    [
        (td3, {}),
        (td3, {"policy_freq": 3, "n_critics": 3, "tau": 0.1}),
        (td3, {"policy_freq": 1, "policy_noise": 0.5, "noise_clip": 0.3}),
        (ddpg, {}),
        (ddpg, {"n_critics": 2, "tau": 0.1, "actor_lr": 1e-3}),
        *(
            (twin, {"n_critics": n, "tau": 0.1, "actor_lr": 1e-3, **kind})
            for twin in (td3, ddpg)
            for n, kind in ((1, QR), (3, QR), (1, IQN), (3, IQN))
        ),
    ],
)
def test_td3_and_ddpg(d3rlpy: Any, dataset: Batch, twin: ModuleType, settings: dict[str, Any]) -> None:
    """Weights, logs, targets, actions and exploratory actions are equal."""
    config = twin.TrainConfig(
        device="cpu",
        batch_size=BATCH_SIZE,
        actor_hidden_dims=HIDDEN["actor"],
        critic_hidden_dims=HIDDEN["critic"],
        **settings,
    )
    shared = {name: value for name, value in settings.items() if name not in OF_CRITICS}
    renamed = as_theirs(getattr(d3rlpy.algos, f"{config.name}Config"), config, shared)
    renamed |= quantile_factory(d3rlpy, config)
    same_draws()
    theirs = created(d3rlpy, f"{config.name}Config", ("actor", "critic"), **renamed)
    same_draws()
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    ours = [trainer.actor, trainer.actor_target, *trainer.critic.members, *trainer.critic_target.members]
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


def joined(policy: nn.Module) -> list[torch.Tensor]:
    """The parameters of the library's normal policy, with the heads for means and deviations joined into one layer."""
    *hidden, mean, mean_bias, log_std, log_std_bias = policy.parameters()
    return [*hidden, torch.cat([mean, log_std]), torch.cat([mean_bias, log_std_bias])]


def losses_of(log: dict[str, Any]) -> dict[str, Any]:
    """The metrics of SAC that have the same name and meaning on both sides."""
    return {name: log[name] for name in ("critic_loss", "actor_loss")}


@pytest.mark.parametrize("settings", [{}, QR, IQN], ids=["mean", "qr", "iqn"])
def test_critics_and_policy_of_sac(d3rlpy: Any, dataset: Batch, settings: dict[str, Any]) -> None:
    """Six updates from the library's weights agree up to rounding, because densities are written differently.

    The temperature is constant, because the library's policy learns after it, and ours before it.
    """
    config = sac.TrainConfig(device="cpu", batch_size=BATCH_SIZE, tau=0.1, learning_rate=1e-3, **settings)
    rates: dict[str, Any] = {"actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3, "temp_learning_rate": 0.0}
    factory = quantile_factory(d3rlpy, config)
    same_draws()
    theirs = created(d3rlpy, "SACConfig", (), tau=0.1, initial_temperature=0.3, **rates, **factory)
    trainer = sac.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    modules = theirs.impl.modules
    critics = [trainer.critic_1, trainer.critic_2, trainer.critic_1_target, trainer.critic_2_target]

    def weights() -> list[tuple[torch.Tensor, torch.Tensor]]:
        networks: list[nn.Module] = [*modules.q_funcs, *modules.targ_q_funcs]
        theirs = [weight for network in networks for weight in network.parameters()]
        ours = [weight for network in critics for weight in network.parameters()]
        return [*zip([*trainer.actor.parameters(), *ours], [*joined(modules.policy), *theirs], strict=True)]

    with torch.no_grad():
        for mine, other in weights():
            mine.copy_(other)
        trainer.log_temperature.constant.fill_(math.log(0.3))
    trainer.log_temperature_optimizer.param_groups[0]["lr"] = 0.0
    same_draws()
    logged = [theirs.impl.update(batch_of(d3rlpy, dataset), step) for step in range(UPDATES)]
    same_draws()
    logs = []
    for _ in range(UPDATES):
        indices, noise = sac.draw_noise(config, ROWS, ACTION_DIM, CPU)
        logs.append(trainer.update(take(dataset, indices), noise))
    assert_same_log([losses_of(log) for log in logs], [losses_of(log) for log in logged], tolerance=1e-5)
    worst = max((mine - other).abs().max().item() for mine, other in weights())
    print(f"furthest apart: {worst:.1e}")
    # Adam divides by a gradient's size, so it magnifies the rounding of small ones. This is a tenth of its step.
    assert worst < 1e-4


@pytest.mark.parametrize("twin", [td3, ddpg, sac])
def test_the_library_wants_equal_numbers_of_quantiles(d3rlpy: Any, dataset: Batch, twin: ModuleType) -> None:
    """With unequal numbers its loss fails an assertion, so nothing can be compared."""
    sizes = {"n_quantiles": 7, "n_greedy_quantiles": 4}
    config = twin.TrainConfig(critic="iqn", **sizes)
    theirs = created(d3rlpy, f"{config.name}Config", (), **quantile_factory(d3rlpy, config))
    with pytest.raises(AssertionError):
        theirs.impl.update(batch_of(d3rlpy, dataset), 0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"alpha": 10.0, "state_weight": 0.3, "policy_freq": 3, "n_critics": 3},
        {"policy_freq": 1, "n_critics": 1},
        # With two action components there are so few columns that the library searches with a tree.
        {"action_dim": 2},
    ],
)
def test_prdc(d3rlpy: Any, dataset: Batch, settings: dict[str, Any]) -> None:
    """The library builds its search in `fit`: six updates of `fit` from a seed, and the actions, are equal."""
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
    renamed = as_theirs(d3rlpy.algos.PRDCConfig, config, settings)
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
    ours = [trainer.actor, trainer.actor_target, *trainer.critic.members, *trainer.critic_target.members]
    assert_same_weights(ours, networks)
    assert_same_actions(trainer.act(observations.numpy()), torch.as_tensor(theirs.predict(observations.numpy())))
