"""SPOT, offline to online: six updates in each phase and a whole loop are bitwise equal; mistakes are caught."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import mse_loss

from corl_torch.finetune import spot
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    adam,
    assert_same_actions,
    assert_same_bits,
    assert_same_log,
    assert_same_weights,
    at_the_weights_of,
    columns_of,
    mlp,
    polyak,
    same_draws,
)
from parity_tests.reference.finetune import CAPACITY, assert_same_life, derived, run_of, write_dataset
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take

# An odd number of VAE updates, because they count towards the actor's period
PHASES = {"vae_iterations": UPDATES - 1, "offline_iterations": UPDATES, "online_iterations": UPDATES}
LOOPS: dict[str, dict[str, Any]] = {
    "default": {},
    "corls files": {"lambd_cool": True, "lambd_end": 0.5, "online_discount": 0.9, "policy_freq": 3, "normalize": True}
    | {"expl_noise": 0.4, "noise_clip": 0.3, "actor_init_w": 1e-3, "critic_init_w": 3e-3, "normalize_reward": False},
}


SMALL: dict[str, Any] = {"vae_hidden_dim": 64, "batch_size": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "corls files": LOOPS["corls files"] | SMALL,
    "at the bounds": SMALL
    | {"policy_noise": 0.4, "noise_clip": 0.3, "lambd": 0.3, "kl_weight": 2.0, "vae_latent_dim": 5, "tau": 0.1}
    | {"discount": 0.9, "actor_lr": 1e-3, "critic_lr": 1e-4, "vae_lr": 3e-4},
}


class ReferenceVAE(nn.Module):
    """CORL's networks, with the twin's names for layers."""

    def __init__(self, config: spot.TrainConfig) -> None:
        super().__init__()
        width, z = config.vae_hidden_dim, config.vae_latent_dim or 2 * ACTION_DIM
        self.encoder_shared = mlp(STATE_DIM + ACTION_DIM, width, width, end=nn.ReLU())
        self.mean, self.log_std = nn.Linear(width, z), nn.Linear(width, z)
        self.decoder = mlp(STATE_DIM + z, width, width, ACTION_DIM)


def networks(config: spot.TrainConfig) -> tuple[nn.Module, ...]:
    """The VAE, the policy before its actions are scaled, and both critics, with their default weights."""
    critic = STATE_DIM + ACTION_DIM, 256, 256, 1
    return ReferenceVAE(config), mlp(STATE_DIM, 256, 256, ACTION_DIM, end=nn.Tanh()), mlp(*critic), mlp(*critic)


def networks_of(trainer: spot.SPOT) -> tuple[nn.Module, ...]:
    """The twin's networks, in the same order."""
    return trainer.vae, trainer.actor.net, trainer.critic_1.net, trainer.critic_2.net


class ReferenceSPOT:
    """CORL's updates of VAE, critics, actor and targets, from a trainer's weights."""

    def __init__(self, config: spot.TrainConfig, trainer: spot.SPOT, bound: float = 1.0) -> None:
        self.config, self.online_it, self.bound, self.cut = config, 0, bound, False
        self.total_it = self.earlier = trainer.total_it
        self.vae, self.actor, self.q1, self.q2 = map(at_the_weights_of, networks_of(trainer), networks(config))
        self.actor_t, self.q1_t, self.q2_t = copy.deepcopy((self.actor, self.q1, self.q2))
        self.vae_adam = adam(self.vae.parameters(), config.vae_lr)
        self.begin()

    def begin(self) -> None:
        """Creates new optimisers, at the beginning and at the switch."""
        self.actor_adam = adam(self.actor.parameters(), self.config.actor_lr)
        self.q_adams = [adam(q.parameters(), self.config.critic_lr) for q in (self.q1, self.q2)]

    def encode(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the code."""
        h = self.vae.encoder_shared(torch.cat([s, a], -1))
        return self.vae.mean(h), self.vae.log_std(h).clamp(-4, 15).exp()

    def decode(self, s: Tensor, z: Tensor) -> Tensor:
        """The actions of codes with any leading axes."""
        return self.bound * torch.tanh(self.vae.decoder(torch.cat([s, z], -1)))

    def elbo(self, s: Tensor, a: Tensor) -> Tensor:
        """The negative log-likelihood bound of each action, (B,), for codes that are stored sample by sample."""
        k, (mean, std) = self.config.num_samples, self.encode(s, a)
        many_means, many_stds, many_s = (x.repeat(k, 1, 1).permute(1, 0, 2) for x in (mean, std, s))
        z = many_means + many_stds * torch.randn_like(many_stds)
        errors = (self.decode(many_s, z) - a[:, None]) ** 2
        kl = -0.5 * (1 + std.pow(2).log() - mean.pow(2) - std.pow(2))
        return errors.mean((1, 2)) + self.config.kl_weight * kl.mean(-1)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Any]:
        """Makes the update that is due; the first online update resets the optimisers."""
        config = self.config
        self.total_it += 1
        of_this_run = self.total_it - self.earlier
        if of_this_run <= config.vae_iterations:
            return self.learn_vae(s, a)
        if of_this_run > config.vae_iterations + config.offline_iterations:
            self.online_it += 1
            if self.online_it == 1:
                self.begin()
        return self.learn(s, a, r, s2, d)

    def learn_vae(self, s: Tensor, a: Tensor) -> dict[str, Any]:
        """A step of the VAE, without an axis for samples."""
        mean, std = self.encode(s, a)
        error = mse_loss(self.decode(s, mean + std * torch.randn_like(std)), a)
        kl = -0.5 * (1 + torch.log(std.pow(2)) - mean.pow(2) - std.pow(2)).mean()
        loss = error + self.config.kl_weight * kl
        self.vae_adam.zero_grad()
        loss.backward()
        self.vae_adam.step()
        return {"VAE/reconstruction_loss": error, "VAE/KL_loss": kl, "VAE/vae_loss": loss}

    def learn(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Any]:
        """A step of the critics; then of the actor and all targets if they are due."""
        c = self.config
        with torch.no_grad():
            bound, limit = self.bound, c.noise_clip * self.bound
            smoothing = (torch.randn_like(a) * (c.policy_noise * bound)).clamp(-limit, limit)
            smoothed = bound * self.actor_t(s2) + smoothing
            self.cut |= bool(smoothed.max() > bound and smoothed.min() < -bound)
            a2 = torch.cat([s2, smoothed.clamp(-bound, bound)], 1)
            discount = c.online_discount if self.online_it else c.discount
            y = r + (1 - d) * discount * torch.min(self.q1_t(a2), self.q2_t(a2))
        sa = torch.cat([s, a], 1)
        loss = mse_loss(self.q1(sa), y) + mse_loss(self.q2(sa), y)
        for optimizer in self.q_adams:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self.q_adams:
            optimizer.step()
        log = {"critic_loss": loss}
        if self.total_it % c.policy_freq == 0:
            pi = self.bound * self.actor(s)
            q, unlikely = self.q1(torch.cat([s, pi], 1)), self.elbo(s, pi)
            cooling = max(c.lambd_end, 1.0 - self.online_it / c.online_iterations) if c.lambd_cool else 1.0
            lambd = c.lambd * cooling
            loss = -(1.0 / q.abs().mean().detach()) * q.mean() + lambd * unlikely.mean()
            self.actor_adam.zero_grad()
            loss.backward()
            self.actor_adam.step()
            log |= {"actor_loss": loss, "neg_log_beta_mean": unlikely.mean(), "neg_log_beta_max": unlikely.max()}
            log |= {"lambd": torch.tensor(lambd)}
            for target, source in ((self.q1_t, self.q1), (self.q2_t, self.q2), (self.actor_t, self.actor)):
                polyak(target, source, c.tau)
        return log


def parts(reference: ReferenceSPOT) -> dict[str, nn.Module | Tensor]:
    """The derivation's networks by the twin's names."""
    found = {"vae": reference.vae, "actor": reference.actor, "actor_target": reference.actor_t}
    found |= {"critic_1": reference.q1, "critic_1_target": reference.q1_t}
    return found | {"critic_2": reference.q2, "critic_2_target": reference.q2_t}


def acting(reference: ReferenceSPOT, config: spot.TrainConfig) -> Callable[[Tensor], Tensor]:
    """CORL's policy as it acts online."""

    def act(state: Tensor) -> Tensor:
        with torch.no_grad():
            action = reference.actor(state)
            noise = config.expl_noise * torch.randn_like(action)
            return (action + noise.clamp(-config.noise_clip, config.noise_clip)).clamp(-1.0, 1.0)

    return act


def three_phases(
    dataset: Batch, settings: dict[str, Any], bound: float = 1.0, stretch: float = 1.0, earlier: int = 0
) -> tuple[list, list, spot.SPOT, ReferenceSPOT]:
    """The logs of each side in all three phases, and both final states.

    The policy's last layer and the code's deviations are stretched. `earlier` is the number of updates made in an
    earlier run.
    """
    config = spot.TrainConfig(device="cpu", **PHASES | settings)
    torch.manual_seed(7)
    trainer = spot.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    for layer in (trainer.actor.net[4], trainer.actor_target.net[4], trainer.vae.log_std):
        layer.weight.data.mul_(stretch)
    trainer.total_it = trainer.earlier = earlier
    reference, logs = ReferenceSPOT(config, trainer, bound), []
    same_draws()
    for step in range(config.max_timesteps):
        if step == config.switch:
            trainer.go_online()
        indices, noise = spot.draw_noise(config, ROWS, ACTION_DIM, CPU, trainer.pretrains, trainer.delayed)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    updates = [reference.update(*columns_of(dataset, config.batch_size)) for _ in range(config.max_timesteps)]
    return logs, updates, trainer, reference


@pytest.mark.parametrize("name", SETTINGS)
def test_three_phases(dataset: Batch, name: str) -> None:
    """The VAE's updates, the offline updates and the online updates are equal."""
    further = (2.0, 20.0, 7) if name == "at the bounds" else ()
    logs, updates, trainer, reference = three_phases(dataset, SETTINGS[name], *further)
    assert_same_log(logs, updates)
    assert_same_bits(trainer, parts(reference))
    assert reference.cut == (name == "at the bounds")
    assert trainer.total_it == reference.total_it


def test_the_vae_learns_from_the_first_code(dataset: Batch) -> None:
    """The number of codes does not matter."""
    trainer = spot.create_trainer(spot.TrainConfig(device="cpu", **SMALL), STATE_DIM, ACTION_DIM, 1.0)
    batch, latent = take(dataset, torch.arange(20)), torch.randn(20, 3, 2 * ACTION_DIM)
    losses = [trainer.vae_loss(batch, spot.Noise(None, codes))[0] for codes in (latent, latent[:, :1])]
    assert torch.equal(*losses)


@pytest.mark.parametrize("online_iterations", [0, 1, 10])
def test_lambd_cools_down_to_its_share(online_iterations: int) -> None:
    """It falls by the same amount with every online step, of which there may be none."""
    config = spot.TrainConfig(lambd=2.0, lambd_cool=True, lambd_end=0.3, online_iterations=online_iterations)
    assert spot.cooled(config, 0) == 2.0
    for step in range(1, online_iterations + 1):
        assert spot.cooled(config, step) == pytest.approx(2.0 * max(0.3, 1.0 - step / online_iterations))
    assert spot.cooled(spot.TrainConfig(lambd=2.0, online_iterations=online_iterations), 1) == 2.0


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """Its logarithm is between -4 and 15."""
    vae = spot.create_trainer(spot.TrainConfig(device="cpu", vae_hidden_dim=64), STATE_DIM, ACTION_DIM, 1.0).vae
    vae.log_std.weight.data.mul_(300.0)
    s, a = dataset.observations, dataset.actions
    free = vae.log_std(vae.encoder_shared(torch.cat([s, a], -1)))
    assert free.min() < -5.0
    assert free.max() > 16.0
    assert torch.equal(vae(s, a, torch.zeros(ROWS, 1, 2 * ACTION_DIM))[2], free.clamp(-4.0, 15.0).exp())


def test_several_codes(dataset: Batch) -> None:
    """CORL multiplies rows in another order, which rounds differently."""
    logs, updates, trainer, reference = three_phases(dataset, {"num_samples": 3, "vae_hidden_dim": 64})
    assert_same_log(logs, updates, tolerance=1e-5)
    for name, part in parts(reference).items():
        for mine, other in zip(getattr(trainer, name).parameters(), part.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=0.0, atol=1e-6)


def test_the_estimate_is_the_likelihood(dataset: Batch) -> None:
    """It equals importance sampling with torch's densities, and with the decoder's deviation for codes of size 2A."""
    config = spot.TrainConfig(device="cpu", iwae=True, num_samples=50, vae_hidden_dim=64)
    trainer = spot.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    reference, s, a = ReferenceSPOT(config, trainer), dataset.observations[:20], dataset.actions[:20]
    latent = torch.randn(20, 50, 2 * ACTION_DIM)
    with torch.no_grad():
        mean, std = reference.encode(s, a)
        codes = Normal(mean[:, None], std[:, None])
        z = mean[:, None] + std[:, None] * latent
        decoder = Normal(reference.decode(s[:, None].expand(-1, 50, -1), z), math.sqrt(config.kl_weight / 4))
        log_joint = decoder.log_prob(a[:, None]).sum(-1) + Normal(0.0, 1.0).log_prob(z).sum(-1)
        expected = -(log_joint - codes.log_prob(z).sum(-1)).exp().mean(1).log()
        torch.testing.assert_close(trainer.neg_log_beta(s, a, latent), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("init_w", [None, 1e-3])
def test_weights_start_where_the_seed_says(init_w: float | None) -> None:
    """The VAE is built first. Actor and critics draw their last layer first, and again if it has its own bounds."""
    critic_init_w = init_w and 3.0 * init_w
    config = spot.TrainConfig(device="cpu", actor_init_w=init_w, critic_init_w=critic_init_w, vae_hidden_dim=64)
    torch.manual_seed(7)
    trainer = spot.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    vae, critic = ReferenceVAE(config), (STATE_DIM + ACTION_DIM, 1, critic_init_w)
    expected = [vae, backwards(STATE_DIM, ACTION_DIM, init_w), backwards(*critic), backwards(*critic)]
    assert_same_weights(networks_of(trainer), expected)
    targets = trainer.actor_target, trainer.critic_1_target, trainer.critic_2_target
    assert_same_weights(targets, expected[1:])


def backwards(inputs: int, outputs: int, init_w: float | None) -> nn.Sequential:
    """A network whose last layer is drawn first."""
    last = nn.Linear(256, outputs)
    if init_w is not None:
        for values in (last.weight, last.bias):
            nn.init.uniform_(values, -init_w, init_w)
    return nn.Sequential(nn.Linear(inputs, 256), nn.Linear(256, 256), last)


def lives(folder: Path, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Short runs of the twin and the derivation, with twenty online steps that overwrite the ring."""
    raw = write_dataset(folder / "line.hdf5")
    short: dict[str, Any] = {
        "vae_iterations": 3,
        "vae_hidden_dim": 16,
        "offline_iterations": 4,
        "online_iterations": 20,
        "eval_freq": 13,
        "n_episodes": 1,
        "batch_size": 16,
    }
    config = spot.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        buffer_size=CAPACITY,
        **short | settings,
    )
    ours, fresh, as_it_was = run_of(spot, spot.SPOT, config)
    reference = ReferenceSPOT(config, fresh)
    as_it_was()
    return ours, derived(config, raw, acting(reference, config), reference.update)


@pytest.mark.parametrize("settings", LOOPS.values(), ids=LOOPS)
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """The twin's replay buffer and batches equal the derivation's."""
    assert_same_life(*lives(tmp_path, settings))


def test_evaluation_has_no_noise(dataset: Batch) -> None:
    """It equals CORL's policy in evaluation; exploration differs from it, and is scaled by the largest action twice."""
    config = spot.TrainConfig(device="cpu", vae_hidden_dim=16, expl_noise=0.4, noise_clip=0.3)
    trainer = spot.create_trainer(config, STATE_DIM, ACTION_DIM, 2.0)
    trainer.actor.net[4].weight.data.mul_(5.0)
    states = dataset.observations[:100]
    action = 2.0 * at_the_weights_of(trainer.actor.net, networks(config)[1])(states).detach()
    assert_same_actions(trainer.act(states.numpy()), action)
    noise = torch.randn(100, ACTION_DIM)
    explored = 2.0 * (action + (0.4 * noise).clamp(-0.3, 0.3))
    assert explored.min() < -2.0
    assert explored.max() > 2.0
    found = trainer.explore(states, spot.Exploration(noise))
    assert torch.equal(found, explored.clamp(-2.0, 2.0))
    assert not found.requires_grad
