"""BEAR in its working form and as in d3rlpy 2.8.1: six updates and the actions are bitwise equal."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import mse_loss, softplus

from corl_torch import bear
from parity_tests.reference.common import (
    ACTION_DIM,
    STATE_DIM,
    adam,
    assert_same_actions,
    assert_same_weights,
    polyak,
    six_updates,
)
from parity_tests.reference.d3rlpy import Vae, Z, stepped, tried
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "critic_hidden_dims": (50, 20), "vae_hidden_dims": (64, 48)}
D3RLPY: dict[str, Any] = {"vae_tanh": False, "mmd_in_actor": False}
OTHER: dict[str, Any] = {"lam": 0.3, "n_critics": 3, "tau": 0.1, "discount": 0.9, "kl_weight": 2.0, "batch_size": 64}
RATES: dict[str, Any] = {"actor_lr": 1e-3, "critic_lr": 1e-4, "vae_lr": 1e-2, "alpha_lr": 0.1}
ENTROPY: dict[str, Any] = {"temperature_lr": 1e-2, "initial_temperature": 1.0}
SHARP: dict[str, Any] = {"mmd_kernel": "gaussian", "mmd_sigma": 0.5, "n_mmd_action_samples": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "after the warm-up": SMALL | {"imitation_steps": 3, "n_action_samples": 5},
    "entropy, gaussian": SMALL | OTHER | RATES | ENTROPY | SHARP | {"imitation_steps": 2, "n_target_samples": 3},
    "d3rlpy's default": D3RLPY | {"imitation_steps": 0},
    "d3rlpy": SMALL | OTHER | RATES | D3RLPY | ENTROPY | SHARP | {"imitation_steps": 2, "n_target_samples": 3},
    "d3rlpy, heaviest": SMALL
    | D3RLPY
    | ENTROPY
    | {"imitation_steps": 1, "initial_alpha": math.exp(10), "actor_lr": 1e-2},
    "lightest": SMALL | RATES | {"imitation_steps": 1, "initial_alpha": math.exp(-5), "alpha_threshold": 5.0},
}


class Reference:
    """d3rlpy's networks, drawn in its order from torch's generator, with its updates and actions."""

    def __init__(self, config: bear.TrainConfig, bound: float) -> None:
        self.config, self.bound, self.step, self.spread, self.bounded = config, bound, 0, False, False
        s, a = STATE_DIM, ACTION_DIM
        self.pi = nn.ModuleList(tried(config.actor_hidden_dims, (s,), a, a))
        self.critics, _ = (
            [nn.Sequential(*tried(config.critic_hidden_dims, (s, a), 1)) for _ in range(config.n_critics)]
            for _ in range(2)
        )
        self.vae = Vae(config, bound)
        self.critics_t = copy.deepcopy(self.critics)
        self.temp = nn.Parameter(torch.full((1, 1), math.log(config.initial_temperature)))
        self.alpha = nn.Parameter(torch.full((1, 1), math.log(config.initial_alpha)))
        self.pi_adam = adam(self.pi.parameters(), config.actor_lr)
        self.q_adam = adam([p for critic in self.critics for p in critic.parameters()], config.critic_lr)
        self.temp_adam = adam([self.temp], config.temperature_lr)
        self.alpha_adam = adam([self.alpha], config.alpha_lr if config.mmd_in_actor else config.actor_lr)

    def policy(self, s: Tensor) -> Normal:
        """The distribution before the tanh."""
        body, mean, log_std = self.pi
        h = body(s)
        wide = log_std(h)
        self.spread |= bool((wide > 2).any() and (wide < -20).any())
        return Normal(mean(h), wide.clamp(-20, 2).exp())

    def sampled(self, s: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Actions (n, rows, A) and their log-densities (n, rows, 1)."""
        pi = self.policy(s)
        u = pi.rsample((n,))
        slope = 2 * (math.log(2) - u - softplus(-2 * u))
        return self.bound * torch.tanh(u), (pi.log_prob(u) - slope).sum(-1, keepdim=True)

    def smallest(self, s: Tensor, a: Tensor) -> Tensor:
        """The smallest value of the online critics."""
        return torch.stack([critic(torch.cat([s, a], 1)) for critic in self.critics]).min(0).values

    def mmd_loss(self, s: Tensor) -> Tensor:
        """The weighted excess of the MMD."""
        c, rows, n = self.config, len(s), self.config.n_mmd_action_samples
        with torch.no_grad():
            # Drawn sample by sample, but decoded state by state, because on some processors a product's last bits
            # depend on the position of its row.
            z = torch.randn(n, rows, Z).clamp(-0.5, 0.5).transpose(0, 1).reshape(rows * n, Z)
            b = self.vae.decoder(torch.cat([s.repeat_interleave(n, dim=0), z], 1))
            b = (b if c.vae_tanh else torch.tanh(b)).reshape(rows, n, -1)
        p = self.policy(s).rsample((n,)).transpose(0, 1)

        def k(x: Tensor, y: Tensor) -> Tensor:
            d = x.unsqueeze(2) - y.unsqueeze(1)
            far = (d**2 if c.mmd_kernel == "gaussian" else d.abs()).sum(3)
            return (-far / (2 * c.mmd_sigma)).exp().mean(dim=[1, 2])

        mmd = (k(p, p) + k(b, b) - 2 * k(p, b) + 1e-6).sqrt().reshape(-1, 1)
        return (self.alpha.exp() * (mmd - c.alpha_threshold)).mean()

    def learn_temp(self, log_p: Tensor) -> dict[str, Tensor]:
        """A step of the temperature."""
        loss = stepped(self.temp_adam, -(self.temp.exp() * (log_p.detach() - ACTION_DIM)).mean())
        return {"temp_loss": loss, "temp": self.temp.detach().exp()}

    def learn_alpha(self, mmd_loss: Tensor, leaves: bool) -> dict[str, Tensor]:
        """A step of the MMD's weight; if `leaves`, its backward pass leaves the policy's gradient in place."""
        self.alpha_adam.zero_grad()
        (-mmd_loss).backward(retain_graph=leaves)
        self.alpha_adam.step()
        self.bounded |= bool(self.alpha < -5) or bool(self.alpha > 10)
        self.alpha.data.clamp_(-5.0, 10.0)
        return {"alpha": self.alpha.detach().exp()}

    def learn_q(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> Tensor:
        """The critics' loss."""
        c, rows, n = self.config, len(s), self.config.n_target_samples
        with torch.no_grad():
            a2, log_p = (x.transpose(0, 1) for x in self.sampled(s2, n))
            many = torch.cat([s2.repeat_interleave(n, dim=0), a2.reshape(rows * n, -1)], 1)
            q2 = torch.stack([critic(many).reshape(rows, n) for critic in self.critics_t])
            best, place = ((1 - c.lam) * q2.max(0).values + c.lam * q2.min(0).values).max(1)
            v = best.reshape(-1, 1) - self.temp.exp() * log_p[torch.arange(rows), place]
            y = r + c.discount * v * (1 - d)
        losses = [mse_loss(critic(torch.cat([s, a], 1)), y) for critic in self.critics]
        return stepped(self.q_adam, torch.stack(losses).sum())

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """An update in the order of d3rlpy 1.1.1 or of 2.8.1."""
        c, warm = self.config, self.step < self.config.imitation_steps
        self.step += 1
        found = {"vae_loss": self.vae.learn(s, a)}
        if c.mmd_in_actor:
            if c.temperature_lr > 0:
                found |= self.learn_temp(self.sampled(s, 1)[1])
            loss = self.mmd_loss(s)
            found |= {"alpha_loss": -loss} | self.learn_alpha(loss, leaves=False)
        found["critic_loss"] = self.learn_q(s, a, r, s2, d)
        if warm:
            found["actor_loss"] = stepped(self.pi_adam, self.mmd_loss(s))
        else:
            action, log_p = (x[0] for x in self.sampled(s, 1))
            found |= {} if c.mmd_in_actor else self.learn_temp(log_p)
            sac = (self.temp.exp() * log_p - self.smallest(s, action)).mean()
            self.pi_adam.zero_grad()
            mmd = self.mmd_loss(s)
            found["actor_loss"] = sac + mmd
            if not c.mmd_in_actor:
                found |= {"mmd_loss": mmd} | self.learn_alpha(mmd, leaves=True)
            found["actor_loss"].backward()
            self.pi_adam.step()
        for target, source in zip(self.critics_t, self.critics, strict=True):
            polyak(target, source, c.tau)
        return found

    @torch.no_grad()
    def best(self, s: Tensor, noise: Tensor) -> Tensor:
        """The best of each row's actions, which are made from noise (rows, n, A)."""
        rows, n, _ = noise.shape
        pi = self.policy(s)
        a = self.bound * torch.tanh(pi.loc[:, None] + noise * pi.scale[:, None])
        q = self.critics[0](torch.cat([s.repeat_interleave(n, dim=0), a.reshape(rows * n, -1)], 1)).reshape(rows, n)
        return a[torch.arange(rows), q.argmax(1)]

    def networks(self) -> list[nn.Module]:
        """All networks."""
        return [self.vae.encoder, self.vae.decoder, self.pi, *self.critics, *self.critics_t]


def networks_of(trainer: bear.BEAR) -> list[nn.Module]:
    """The twin's networks, in the same order."""
    critics = [*trainer.critic.members, *trainer.critic_target.members]
    return [trainer.encoder, trainer.decoder, trainer.actor, *critics]


def both(settings: dict[str, Any], bound: float) -> tuple[bear.BEAR, Reference]:
    """A fresh twin and its derivation, from the same seed."""
    config = bear.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = bear.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    torch.manual_seed(7)
    return trainer, Reference(config, bound)


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_bear(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """VAE, weights, critics, policy and targets are equal; stretched last layers make deviations reach their bounds."""
    trainer, reference = both(settings, bound)
    for decoder, code, log_std in (
        (trainer.decoder.net[-1], trainer.encoder.log_std, trainer.actor.log_std),
        (reference.vae.decoder[-1], reference.vae.encoder[2], reference.pi[2]),
    ):
        decoder.weight.data.mul_(5.0)
        code.weight.data.mul_(100.0)
        log_std.weight.data.mul_(160.0)
    six_updates(
        bear, trainer.hp, trainer, dataset, lambda rows: reference.update(*rows), phase=lambda: (trainer.warms_up,)
    )
    assert_same_weights(networks_of(trainer), reference.networks())
    assert torch.equal(trainer.log_temperature(), reference.temp[0, 0])
    assert torch.equal(trainer.log_alpha(), reference.alpha[0, 0])
    observations = dataset.observations[:100]
    noise_of_acting = torch.randn(len(observations), trainer.hp.n_action_samples, ACTION_DIM)
    found = trainer.act(observations.numpy(), noise_of_acting.numpy())
    assert_same_actions(found, reference.best(observations, noise_of_acting))
    assert reference.vae.spread
    assert reference.spread
    assert reference.bounded == (settings.get("initial_alpha", 1.0) != 1.0)


def test_what_acting_draws() -> None:
    """It draws the noise of two samples."""
    rng, config = np.random.default_rng(3), bear.TrainConfig(n_action_samples=2)
    found = bear.draw_acting_noise(np.random.default_rng(3), config, ACTION_DIM)
    np.testing.assert_array_equal(found, rng.standard_normal((2, ACTION_DIM)))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_weights_start_where_the_seed_says(settings: dict[str, Any]) -> None:
    """The order is d3rlpy's, including its draws between layers and for target critics, which then become copies."""
    trainer, reference = both(settings, 1.0)
    assert_same_weights(networks_of(trainer), reference.networks())
