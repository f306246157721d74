"""The genuine d3rlpy 2.8.1 and our twins in its form: the same weights from a seed, and six equal updates.

`make test-d3rlpy` installs the library; without it these tests are skipped.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from corl_torch import plas
from shared.data.transitions import Batch

pytestmark = pytest.mark.d3rlpy

STATE_DIM, ACTION_DIM, BATCH_SIZE, UPDATES = 17, 6, 32, 6
HIDDEN = {"actor": (40, 30), "critic": (50, 20), "imitator": (64, 48)}
# What d3rlpy 2.8.1 does in place of the paper
FAULTS: dict[str, Any] = {"vae_tanh": False, "copy_target_policy": False}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bits may depend on how a sum is split over threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def d3rlpy() -> Any:
    """The library."""
    return pytest.importorskip("d3rlpy", reason="the genuine d3rlpy is not installed: make test-d3rlpy")


def created(d3rlpy: Any, config: str, seed: int, networks: tuple[str, ...], **settings: Any) -> Any:
    """The library's algorithm with small networks, fresh from a seed."""
    factory = d3rlpy.models.VectorEncoderFactory
    encoders = {f"{part}_encoder_factory": factory(hidden_units=list(HIDDEN[part])) for part in networks}
    algorithm = getattr(d3rlpy.algos, config)(batch_size=BATCH_SIZE, **encoders, **settings).create(device="cpu:0")
    torch.manual_seed(seed)
    algorithm.create_impl((STATE_DIM,), ACTION_DIM)
    return algorithm


def batches() -> list[Batch]:
    """Rows of random numbers, a third of them terminal."""
    rng = np.random.default_rng(0)
    columns = [
        (
            rng.normal(size=(BATCH_SIZE, STATE_DIM)),
            rng.uniform(-1, 1, (BATCH_SIZE, ACTION_DIM)),
            rng.normal(size=BATCH_SIZE),
            rng.normal(size=(BATCH_SIZE, STATE_DIM)),
            rng.random(BATCH_SIZE) < 1 / 3,
        )
        for _ in range(UPDATES)
    ]
    return [Batch(*(torch.as_tensor(column, dtype=torch.float32) for column in batch)) for batch in columns]


def updated(d3rlpy: Any, algorithm: Any) -> list[dict[str, float]]:
    """What the library logs over these batches."""
    logs = []
    for step, (s, a, r, s2, d) in enumerate(batches()):
        rows = (s, a, r[:, None], s2, a, r[:, None], d[:, None], torch.ones(BATCH_SIZE, 1))
        logs.append(algorithm.impl.inner_update(d3rlpy.torch_utility.TorchMiniBatch(*rows, "cpu:0"), step))
    return logs


def assert_equal(ours: list[nn.Module], theirs: list[nn.Module]) -> None:
    """Every number of every network, in their order."""
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for a, b in zip(mine.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b), f"network {number}: {(a - b).abs().max():g} apart"


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
def test_plas(d3rlpy: Any, warm: int, lam: float, n_critics: int, perturbation: bool) -> None:
    """Weights, logs, targets and actions, in the VAE's updates and in those after them."""
    name = "PLASWithPerturbationConfig" if perturbation else "PLASConfig"
    shared: dict[str, Any] = {"lam": lam, "n_critics": n_critics}
    if perturbation:
        shared["action_flexibility"] = 0.3
    theirs = created(d3rlpy, name, 7, ("actor", "critic", "imitator"), warmup_steps=warm, **shared)
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
    torch.manual_seed(7)
    trainer = plas.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    assert_equal(plas_networks(trainer), their_plas_networks(theirs))
    torch.manual_seed(5)
    expected = updated(d3rlpy, theirs)
    torch.manual_seed(5)
    for batch, log in zip(batches(), expected, strict=True):
        _, noise = plas.draw_noise(config, BATCH_SIZE, ACTION_DIM, torch.device("cpu"), trainer.pretrains)
        assert {key: float(value) for key, value in trainer.update(batch, noise).items()} == log
    assert_equal(plas_networks(trainer), their_plas_networks(theirs))
    observations = batches()[0].observations.numpy()
    np.testing.assert_array_equal(trainer.act(observations), theirs.predict(observations))
