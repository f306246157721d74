"""PLAS and PLAS+P, as in the paper and as in d3rlpy 2.8.1: six updates are bitwise equal."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from corl_torch import plas
from parity_tests.reference.common import (
    ACTION_DIM,
    STATE_DIM,
    UPDATES,
    adam,
    assert_same_actions,
    assert_same_weights,
    polyak,
    six_updates,
)
from parity_tests.reference.d3rlpy import Vae, Z, stepped, tried
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "critic_hidden_dims": (50, 20), "vae_hidden_dims": (64, 48)}
D3RLPY: dict[str, Any] = {"vae_tanh": False, "copy_target_policy": False}
PERTURBED: dict[str, Any] = {"perturbation": True, "action_flexibility": 0.3}
OTHER: dict[str, Any] = {"lam": 0.3, "n_critics": 3, "tau": 0.1, "discount": 0.9, "kl_weight": 2.0, "batch_size": 64}
RATES: dict[str, Any] = {"actor_lr": 3e-4, "critic_lr": 1e-4, "vae_lr": 1e-2}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"vae_iterations": 2},
    "PLAS+P": SMALL | PERTURBED | {"vae_iterations": 3},
    "d3rlpy": SMALL | D3RLPY | OTHER | RATES | {"vae_iterations": 0},
    "d3rlpy, PLAS+P": SMALL | D3RLPY | PERTURBED | OTHER | {"vae_iterations": 0},
    "VAE alone": SMALL | RATES | {"vae_iterations": UPDATES},
}


class Reference:
    """d3rlpy's networks, drawn in its order from torch's generator, with its updates and actions."""

    def __init__(self, config: plas.TrainConfig, bound: float) -> None:
        self.config, self.bound, self.step, self.cut = config, bound, 0, False
        s, a, dims = STATE_DIM, ACTION_DIM, config.actor_hidden_dims
        self.policy, target = (nn.Sequential(*tried(dims, (s,), Z)) for _ in range(2))
        self.critics, _ = (
            [nn.Sequential(*tried(config.critic_hidden_dims, (s, a), 1)) for _ in range(config.n_critics)]
            for _ in range(2)
        )
        self.vae = Vae(config, bound)
        changes = [nn.Sequential(*tried(dims, (s, a), a)) for _ in range(2)] if config.perturbation else []
        self.pi = nn.ModuleList([self.policy, *changes[:1]])
        self.pi_t = copy.deepcopy(self.pi) if config.copy_target_policy else nn.ModuleList([target, *changes[1:]])
        self.critics_t = copy.deepcopy(self.critics)
        self.pi_adam = adam(self.pi.parameters(), config.actor_lr)
        self.q_adam = adam([p for critic in self.critics for p in critic.parameters()], config.critic_lr)

    def actions(self, policy: nn.ModuleList, s: Tensor) -> Tensor:
        """The actions of the policy or of its target."""
        a = self.vae.decode(s, 2 * torch.tanh(policy[0](s)))
        if not self.config.perturbation:
            return a
        moved = a + self.config.action_flexibility * self.bound * torch.tanh(policy[1](torch.cat([s, a], 1)))
        self.cut |= bool((moved > self.bound).any() and (moved < -self.bound).any())
        return moved.clamp(-self.bound, self.bound)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """A step of the VAE, or of critics, policy and targets."""
        self.step += 1
        if self.step <= self.config.vae_iterations:
            return {"vae_loss": self.vae.learn(s, a)}
        c = self.config
        with torch.no_grad():
            a2 = self.actions(self.pi_t, s2)
            q2 = torch.stack([critic(torch.cat([s2, a2], 1)) for critic in self.critics_t])
            v = c.lam * q2.min(0).values + (1 - c.lam) * q2.max(0).values
            y = r + c.discount * v * (1 - d)
        losses = [mse_loss(critic(torch.cat([s, a], 1)), y) for critic in self.critics]
        critic_loss = stepped(self.q_adam, torch.stack(losses).sum())
        q = self.critics[0](torch.cat([s, self.actions(self.pi, s)], 1))
        actor_loss = stepped(self.pi_adam, -q.mean())
        polyak(self.pi_t, self.pi, c.tau)
        for target, source in zip(self.critics_t, self.critics, strict=True):
            polyak(target, source, c.tau)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss}

    def networks(self) -> list[nn.Module]:
        """All networks."""
        return [self.vae.encoder, self.vae.decoder, *self.pi, *self.pi_t, *self.critics, *self.critics_t]


def networks_of(trainer: plas.PLAS) -> list[nn.Module]:
    """The twin's networks, in the same order."""
    policies = [
        network
        for actor in (trainer.actor, trainer.actor_target)
        for network in (actor.latent, actor.perturbation)
        if network is not None
    ]
    critics = [*trainer.critic.members, *trainer.critic_target.members]
    return [trainer.encoder, trainer.decoder, *policies, *critics]


def both(settings: dict[str, Any], bound: float) -> tuple[plas.PLAS, Reference]:
    """A fresh twin and its derivation, from the same seed."""
    config = plas.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = plas.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    torch.manual_seed(7)
    return trainer, Reference(config, bound)


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_plas(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """VAE, critics, policy and targets are equal; stretched last layers make actions and codes' deviations clipped."""
    trainer, reference = both(settings, bound)
    for decoder, log_std in (
        (trainer.decoder.net[-1], trainer.encoder.log_std),
        (reference.vae.decoder[-1], reference.vae.encoder[2]),
    ):
        decoder.weight.data.mul_(20.0)
        log_std.weight.data.mul_(60.0)
    six_updates(
        plas, trainer.hp, trainer, dataset, lambda rows: reference.update(*rows), phase=lambda: (trainer.pretrains,)
    )
    assert_same_weights(networks_of(trainer), reference.networks())
    observations = dataset.observations
    assert_same_actions(trainer.act(observations.numpy()), reference.actions(reference.pi, observations))
    assert reference.vae.spread == (settings["vae_iterations"] > 0)
    assert reference.cut == settings.get("perturbation", False)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_weights_start_where_the_seed_says(settings: dict[str, Any]) -> None:
    """The order is d3rlpy's, including its draws between layers; targets are copies or have their own weights."""
    trainer, reference = both(settings, 1.0)
    assert_same_weights(networks_of(trainer), reference.networks())
    copied = np.allclose(*(actor.latent[0].weight.detach() for actor in (trainer.actor, trainer.actor_target)))
    assert copied == settings.get("copy_target_policy", True)
