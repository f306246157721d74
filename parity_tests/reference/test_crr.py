"""CRR as in the paper and as in d3rlpy 2.8.1: six updates and the drawn actions are bitwise equal."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import mse_loss

from corl_torch import crr
from parity_tests.reference.common import (
    ACTION_DIM,
    STATE_DIM,
    adam,
    assert_same_actions,
    assert_same_weights,
    polyak,
    six_updates,
)
from parity_tests.reference.d3rlpy import stepped, tried
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "critic_hidden_dims": (50, 20)}
OTHER: dict[str, Any] = {"n_critics": 3, "discount": 0.9, "batch_size": 64, "n_action_samples": 6}
RATES: dict[str, Any] = {"actor_lr": 1e-3, "critic_lr": 1e-4}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "exp, of the best": SMALL
    | OTHER
    | {"weight_type": "exp", "advantage_temperature": 0.5, "max_weight": 1.5, "advantage_type": "max"},
    "d3rlpy": SMALL
    | RATES
    | {"copy_target_policy": False, "weight_type": "exp", "max_weight": 1.1, "advantage_temperature": 0.5}
    | {"target_update_type": "hard", "target_update_period": 4},
    "hard at each": SMALL | OTHER | RATES | {"target_update_type": "hard", "target_update_period": 1},
    "soft, of its own": SMALL
    | OTHER
    | {"copy_target_policy": False, "tau": 0.1, "weight_type": "exp", "advantage_temperature": 2.0, "max_weight": 1.1},
}


class Reference:
    """d3rlpy's networks, drawn in its order from torch's generator, with its updates and actions."""

    def __init__(self, config: crr.TrainConfig, bound: float) -> None:
        self.config, self.bound, self.step, self.cut, self.spread = config, bound, 0, False, False
        s, a = STATE_DIM, ACTION_DIM
        self.pi, self.pi_t = (nn.ModuleList(tried(config.actor_hidden_dims, (s,), a, a)) for _ in range(2))
        self.critics, _ = (
            [nn.Sequential(*tried(config.critic_hidden_dims, (s, a), 1)) for _ in range(config.n_critics)]
            for _ in range(2)
        )
        if config.copy_target_policy:
            self.pi_t = copy.deepcopy(self.pi)
        self.critics_t = copy.deepcopy(self.critics)
        self.pi_adam = adam(self.pi.parameters(), config.actor_lr)
        self.q_adam = adam([p for critic in self.critics for p in critic.parameters()], config.critic_lr)
        # Whether advantages were on both sides of zero, and weights on both sides of the cap
        self.signs: set[bool] = set()
        self.capped: set[bool] = set()

    def policy(self, pi: nn.ModuleList, s: Tensor) -> Normal:
        """The distribution of actions."""
        body, mean, log_std = pi
        h = body(s)
        wide = log_std(h)
        self.spread |= bool((wide > 2).any() and (wide < -20).any())
        return Normal(self.bound * torch.tanh(mean(h)), self.bound * wide.clamp(-20, 2).exp())

    def samples(self, pi: nn.ModuleList, s: Tensor, n: int) -> Tensor:
        """Draws n actions for each state, (n, rows, A), and clips them."""
        a = self.policy(pi, s).rsample((n,))
        self.cut |= bool((a > self.bound).any() and (a < -self.bound).any())
        return a.clamp(-self.bound, self.bound)

    def values(self, critics: list[nn.Sequential], s: Tensor, a: Tensor) -> Tensor:
        """The values of all critics, (critics, rows, 1)."""
        return torch.stack([critic(torch.cat([s, a], -1)) for critic in critics])

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """An update of critics, policy and targets."""
        c = self.config
        with torch.no_grad():
            v = self.values(self.critics_t, s2, self.samples(self.pi_t, s2, 1)[0]).min(0).values
            y = r + c.discount * v * (1 - d)
        losses = [mse_loss(critic(torch.cat([s, a], 1)), y) for critic in self.critics]
        critic_loss = stepped(self.q_adam, torch.stack(losses).sum())
        weight = self.weights(s, a)
        log_p = self.policy(self.pi, s).log_prob(a).sum(1, keepdim=True)
        actor_loss = stepped(self.pi_adam, -(log_p * weight).mean())
        if c.target_update_type == "soft" or self.step % c.target_update_period == 0:
            rate = c.tau if c.target_update_type == "soft" else 1.0
            for target, source in zip([*self.critics_t, self.pi_t], [*self.critics, self.pi], strict=True):
                polyak(target, source, rate)
        self.step += 1
        return {"critic_loss": critic_loss, "actor_loss": actor_loss}

    @torch.no_grad()
    def weights(self, s: Tensor, a: Tensor) -> Tensor:
        """The weights of the data's actions, (rows, 1)."""
        c, n = self.config, self.config.n_action_samples
        sampled = self.samples(self.pi, s, n).transpose(0, 1).reshape(-1, ACTION_DIM)
        values = self.values(self.critics, s.repeat_interleave(n, dim=0), sampled).mean(0).reshape(-1, n)
        base = values.mean(1, keepdim=True) if c.advantage_type == "mean" else values.max(1, keepdim=True).values
        advantage = self.values(self.critics, s, a).mean(0) - base
        self.signs |= set((advantage > 0).flatten().tolist())
        if c.weight_type == "binary":
            return (advantage > 0).float()
        weight = (advantage / c.advantage_temperature).exp()
        self.capped |= set((weight > c.max_weight).flatten().tolist())
        return weight.clamp(0.0, c.max_weight)

    @torch.no_grad()
    def drawn(self, s: Tensor, normal: Tensor, waiting: Tensor) -> Tensor:
        """The actions that exponential waiting times (rows, n) select by the softmax of values; noise (rows, n, A)."""
        pi, n = self.policy(self.pi, s), normal.shape[1]
        a = (pi.loc[:, None] + pi.scale[:, None] * normal).clamp(-self.bound, self.bound)
        many = s.repeat_interleave(n, dim=0)
        values = self.values(self.critics, many, a.reshape(-1, ACTION_DIM)).mean(0).reshape(-1, n)
        return a[torch.arange(len(s)), (values.softmax(1) / waiting).argmax(1)]

    def networks(self) -> list[nn.Module]:
        """All networks."""
        return [self.pi, self.pi_t, *self.critics, *self.critics_t]


def networks_of(trainer: crr.CRR) -> list[nn.Module]:
    """The twin's networks, in the same order."""
    return [trainer.actor, trainer.actor_target, *trainer.critic.members, *trainer.critic_target.members]


def both(settings: dict[str, Any], bound: float) -> tuple[crr.CRR, Reference]:
    """A fresh twin and its derivation, from the same seed."""
    config = crr.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = crr.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    torch.manual_seed(7)
    return trainer, Reference(config, bound)


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_crr(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """Critics, policy and targets are equal; stretched last layers make weights and deviations clipped."""
    trainer, reference = both(settings, bound)
    for last in (*(member[-1] for member in trainer.critic.members), *(critic[-1] for critic in reference.critics)):
        last.weight.data.mul_(20.0)
    for log_std in (trainer.actor.log_std, trainer.actor_target.log_std, reference.pi[2], reference.pi_t[2]):
        log_std.weight.data.mul_(150.0)
    six_updates(crr, trainer.hp, trainer, dataset, lambda rows: reference.update(*rows))
    assert_same_weights(networks_of(trainer), reference.networks())
    observations, n = dataset.observations, trainer.hp.n_action_samples
    normal, waiting = torch.randn(len(observations), n, ACTION_DIM), torch.empty(len(observations), n).exponential_()
    noise_of_acting = torch.cat([normal, -waiting.log()[..., None]], -1)
    found = trainer.act(observations.numpy(), noise_of_acting.numpy())
    assert_same_actions(found, reference.drawn(observations, normal, waiting))
    assert reference.cut
    assert reference.spread
    assert reference.signs == {False, True}
    assert reference.capped == ({False, True} if settings.get("weight_type") == "exp" else set())


def test_an_action_without_an_advantage_does_not_count() -> None:
    """Neither does one with a negative advantage."""
    trainer, _ = both({}, 1.0)
    assert trainer.weights(torch.tensor([-1e-9, 0.0, 1e-9])).tolist() == [0.0, 0.0, 1.0]


def test_what_acting_draws() -> None:
    """For each of two samples it draws the noise of each component, and a Gumbel number."""
    rng, config = np.random.default_rng(3), crr.TrainConfig(n_action_samples=2)
    found = crr.draw_acting_noise(np.random.default_rng(3), config, ACTION_DIM)
    np.testing.assert_array_equal(
        found, np.concatenate([rng.standard_normal((2, ACTION_DIM)), rng.gumbel(size=(2, 1))], axis=1)
    )


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_weights_start_where_the_seed_says(settings: dict[str, Any]) -> None:
    """The order is d3rlpy's, including its draws between layers; the target is a copy or has its own weights."""
    trainer, reference = both(settings, 1.0)
    assert_same_weights(networks_of(trainer), reference.networks())
    copied = torch.equal(trainer.actor.net[0].weight, trainer.actor_target.net[0].weight)
    assert copied == settings.get("copy_target_policy", True)
