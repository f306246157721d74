"""BCQ as in the authors' code and as in d3rlpy 2.8.1: six updates and the sampled actions are bitwise equal."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from corl_torch import bcq
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
OTHER: dict[str, Any] = {"lam": 0.3, "n_critics": 3, "tau": 0.1, "discount": 0.9, "kl_weight": 2.0, "batch_size": 64}
RATES: dict[str, Any] = {"actor_lr": 3e-4, "critic_lr": 1e-4, "vae_lr": 1e-2}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"n_action_samples": 10},
    "fewer in the target": SMALL | OTHER | {"n_action_samples": 7, "n_target_samples": 3, "action_flexibility": 0.5},
    "d3rlpy": SMALL | D3RLPY | OTHER | RATES | {"n_action_samples": 7, "vae_iterations": 3},
    "VAE alone": SMALL | RATES | {"n_action_samples": 1, "vae_iterations": UPDATES},
}


class Reference:
    """d3rlpy's networks, drawn in its order from torch's generator, with its updates and actions."""

    def __init__(self, config: bcq.TrainConfig, bound: float) -> None:
        self.config, self.bound, self.step, self.cut = config, bound, 0, False
        s, a = STATE_DIM, ACTION_DIM
        self.pi, self.pi_t = (nn.Sequential(*tried(config.actor_hidden_dims, (s, a), a)) for _ in range(2))
        self.critics, _ = (
            [nn.Sequential(*tried(config.critic_hidden_dims, (s, a), 1)) for _ in range(config.n_critics)]
            for _ in range(2)
        )
        self.vae = Vae(config, bound)
        if config.copy_target_policy:
            self.pi_t = copy.deepcopy(self.pi)
        self.critics_t = copy.deepcopy(self.critics)
        self.pi_adam = adam(self.pi.parameters(), config.actor_lr)
        self.q_adam = adam([p for critic in self.critics for p in critic.parameters()], config.critic_lr)

    def actions(self, pi: nn.Module, s: Tensor, z: Tensor) -> Tensor:
        """The actions of unclipped codes, one for each row."""
        a = self.vae.decode(s, z.clamp(-0.5, 0.5))
        moved = a + self.config.action_flexibility * self.bound * torch.tanh(pi(torch.cat([s, a], 1)))
        self.cut |= bool((moved > self.bound).any() and (moved < -self.bound).any())
        return moved.clamp(-self.bound, self.bound)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """A step of the VAE; then steps of critics, perturbation and targets."""
        c, rows = self.config, len(s)
        self.step += 1
        found = {"vae_loss": self.vae.learn(s, a)}
        if self.step <= c.vae_iterations:
            return found
        n = c.n_action_samples if c.n_target_samples is None else c.n_target_samples
        with torch.no_grad():
            many = s2.repeat_interleave(n, dim=0)
            many = torch.cat([many, self.actions(self.pi_t, many, torch.randn(rows * n, Z))], 1)
            q2 = torch.stack([critic(many).reshape(rows, n) for critic in self.critics_t])
            mixed = (1 - c.lam) * q2.max(0).values + c.lam * q2.min(0).values
            y = r + c.discount * mixed.max(1, keepdim=True).values * (1 - d)
        losses = [mse_loss(critic(torch.cat([s, a], 1)), y) for critic in self.critics]
        found["critic_loss"] = stepped(self.q_adam, torch.stack(losses).sum())
        q = self.critics[0](torch.cat([s, self.actions(self.pi, s, torch.randn(rows, Z))], 1))
        found["actor_loss"] = stepped(self.pi_adam, -q.mean())
        polyak(self.pi_t, self.pi, c.tau)
        for target, source in zip(self.critics_t, self.critics, strict=True):
            polyak(target, source, c.tau)
        return found

    @torch.no_grad()
    def best(self, s: Tensor, z: Tensor) -> Tensor:
        """The best of each state's actions, which are decoded from codes (rows, n, Z)."""
        rows, n, _ = z.shape
        many = s.repeat_interleave(n, dim=0)
        a = self.actions(self.pi, many, z.reshape(rows * n, Z))
        q = self.critics[0](torch.cat([many, a], 1)).reshape(rows, n)
        return a.reshape(rows, n, -1)[torch.arange(rows), q.argmax(1)]

    def networks(self) -> list[nn.Module]:
        """All networks."""
        return [self.vae.encoder, self.vae.decoder, self.pi, self.pi_t, *self.critics, *self.critics_t]


def networks_of(trainer: bcq.BCQ) -> list[nn.Module]:
    """The twin's networks, in the same order."""
    critics = [*trainer.critic.members, *trainer.critic_target.members]
    return [trainer.encoder, trainer.decoder, trainer.actor, trainer.actor_target, *critics]


def both(settings: dict[str, Any], bound: float) -> tuple[bcq.BCQ, Reference]:
    """A fresh twin and its derivation, from the same seed."""
    config = bcq.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = bcq.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    torch.manual_seed(7)
    return trainer, Reference(config, bound)


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_bcq(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """VAE, critics, perturbation and targets are equal; stretched last layers make actions and deviations clipped."""
    trainer, reference = both(settings, bound)
    for decoder, log_std in (
        (trainer.decoder.net[-1], trainer.encoder.log_std),
        (reference.vae.decoder[-1], reference.vae.encoder[2]),
    ):
        decoder.weight.data.mul_(20.0)
        log_std.weight.data.mul_(60.0)
    six_updates(
        bcq, trainer.hp, trainer, dataset, lambda rows: reference.update(*rows), phase=lambda: (trainer.pretrains,)
    )
    assert_same_weights(networks_of(trainer), reference.networks())
    observations = dataset.observations[:100]
    codes = torch.randn(len(observations), trainer.hp.n_action_samples, Z)
    found = trainer.act(observations.numpy(), codes.numpy())
    assert_same_actions(found, reference.best(observations, codes))
    assert reference.vae.spread
    assert reference.cut


def test_what_acting_draws() -> None:
    """It draws the codes of two samples."""
    rng, config = np.random.default_rng(3), bcq.TrainConfig(n_action_samples=2)
    found = bcq.draw_acting_noise(np.random.default_rng(3), config, ACTION_DIM)
    np.testing.assert_array_equal(found, rng.standard_normal((2, Z)))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_weights_start_where_the_seed_says(settings: dict[str, Any]) -> None:
    """The order is d3rlpy's, including its draws between layers; the target is a copy or has its own weights."""
    trainer, reference = both(settings, 1.0)
    assert_same_weights(networks_of(trainer), reference.networks())
    copied = torch.equal(trainer.actor.net[0].weight, trainer.actor_target.net[0].weight)
    assert copied == settings.get("copy_target_policy", True)
