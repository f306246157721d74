"""XQL from differently arranged equations: six updates in five settings, within 1e-9, in double precision."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn.functional import huber_loss

from corl_torch import xql
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    adam,
    assert_same_actions,
    at_the_weights_of,
    mlp,
    polyak,
    six_updates,
)
from shared.data.transitions import Batch

# The relative tolerance of logs and the absolute one of weights: the losses' terms are added up in another order.
LOG, WEIGHTS = 1e-9, 1e-9
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "several steps of V, drawn actions": {"value_updates": 3, "random_actions": 2, "loss_temp": 0.4, "max_clip": 1.5}
    | {"batch_size": 256, "discount": 0.9},
    "noise, past the cosine's end": {"noise": True, "noise_std": 0.4, "max_timesteps": 4, "loss_temp": 2.0}
    | {"inverse_temperature": 30.0, "max_clip": None, "actor_lr": 1e-3},
    "log": {"gumbel_form": "log", "loss_temp": 0.5, "max_clip": 2.0, "opt_decay_schedule": "none", "tau": 0.1},
    "dropout": {"actor_dropout": 0.3, "noise": True, "random_actions": 1, "value_lr": 1e-3, "critic_lr": 1e-4}
    | {"batch_size": 64},
}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Adam's first steps are signs of gradients: in single precision, a gradient close to 0 could have either sign."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Reference:
    """The textbook update: a plain Gumbel loss, divided by e^m."""

    def __init__(self, config: xql.TrainConfig, trainer: xql.XQL, bound: float) -> None:
        self.c, self.bound, self.updates = config, bound, 0
        self.q = nn.ModuleList(mlp(STATE_DIM + ACTION_DIM, 256, 256, 1) for _ in range(2))
        layers = list(mlp(STATE_DIM, 256, 256, 1))
        norms = [nn.LayerNorm(256, eps=1e-6) for _ in range(2)]
        self.v = nn.Sequential(layers[0], norms[0], layers[1], layers[2], norms[1], *layers[3:])
        pi = list(mlp(STATE_DIM, 256, 256, ACTION_DIM))
        after = [] if config.actor_dropout is None else [nn.Dropout(config.actor_dropout)]
        self.pi = nn.Sequential(*pi[:2], *after, *pi[2:4], *copy.deepcopy(after), pi[4], nn.Tanh())
        self.log_std = nn.Parameter(trainer.actor.log_std.detach().clone())
        for ours, network in zip(networks_of(trainer), [*self.q, self.v, self.pi], strict=True):
            at_the_weights_of(ours, network)
        self.q_t = copy.deepcopy(self.q)
        for ours, network in zip((trainer.critic_target.q1, trainer.critic_target.q2), self.q_t, strict=True):
            at_the_weights_of(ours, network)
        self.v_adam, self.q_adam = (
            adam(self.v.parameters(), config.value_lr),
            adam(self.q.parameters(), config.critic_lr),
        )
        self.pi_adam = adam([self.log_std, *self.pi.parameters()], config.actor_lr)
        # The branches that the batches reach
        self.reached: set[str] = set()

    def least(self, s: Tensor, a: Tensor) -> Tensor:
        """The smaller target value, (N, 1)."""
        with torch.no_grad():
            return torch.cat([q(torch.cat([s, a], 1)) for q in self.q_t], 1).min(1, keepdim=True).values

    def rows(self, s: Tensor, a: Tensor, draws: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The rows that V learns from."""
        if "normal" in draws:
            change = (draws["normal"] * self.c.noise_std).clamp(-0.5, 0.5) * self.bound
            self.reached |= {"noise"} if (a + change).abs().max() > self.bound else set()
            a = (a + change).clamp(-self.bound, self.bound)
        if "uniform" in draws:
            k = self.c.random_actions
            s = torch.cat([s, s.repeat_interleave(k, dim=0)])
            a = torch.cat([a, self.bound * draws["uniform"].flatten(0, 1)])
        return s, a

    def v_step(self, s: Tensor, q: Tensor) -> Tensor:
        """One step of V; returns its loss."""
        c = self.c
        x = (q - self.v(s)) / c.loss_temp
        top = math.inf if c.max_clip is None else c.max_clip
        z = torch.where(x > top, torch.full_like(x, top), x)
        m = max(z.max().item(), -1.0)
        self.reached |= {"clip"} if (x > top).any() else set()
        self.reached |= {"no clip"} if (x < top).any() else set()
        linex = z.exp() - z
        if c.gumbel_form == "rescaled":
            loss = (linex - 1.0).mean() / math.exp(m)
        else:
            slope = (z.exp() - 1.0) / linex.mean()
            loss = torch.mean(slope.detach() * x)
        self.step(loss, self.v_adam)
        return loss

    @staticmethod
    def step(loss: Tensor, optimizer: torch.optim.Adam) -> None:
        """One step."""
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def update(self, batch: tuple[Tensor, ...], draws: dict[str, Tensor]) -> dict[str, Tensor]:
        """Steps of V, the policy, the critics and their targets."""
        c, (s, a, r, s2, d) = self.c, batch
        rows, actions = self.rows(s, a, draws)
        value = self.least(rows, actions)
        for _ in range(c.value_updates):
            value_loss = self.v_step(rows, value)
        with torch.no_grad():
            weight = torch.exp((self.least(s, a) - self.v(s)) * c.inverse_temperature)
            self.reached |= ({"capped"} if (weight > 100).any() else set()) | {"free"}
            y = r + c.discount * (1 - d) * self.v(s2)
        fallen = 0.0 if c.opt_decay_schedule == "none" else min(1.0, self.updates / c.max_timesteps)
        for group in self.pi_adam.param_groups:
            group["lr"] = c.actor_lr * (1 + math.cos(math.pi * fallen)) / 2
        std = self.log_std.clamp(-5, 2).exp().expand(len(s), -1)
        log_p = Independent(Normal(self.bound * self.pi(s), std), 1).log_prob(a)
        actor_loss = -torch.mean(weight.clamp(max=100.0).squeeze(1) * log_p)
        self.step(actor_loss, self.pi_adam)
        values = [q(torch.cat([s, a], 1)) for q in self.q]
        self.reached |= {f"far {bool(far)}" for far in ((values[0] - y).abs() > 20).flatten()}
        q_loss = sum(huber_loss(value, y, delta=20.0) for value in values)
        assert isinstance(q_loss, Tensor)
        self.step(q_loss, self.q_adam)
        polyak(self.q_t, self.q, c.tau)
        self.updates += 1
        return {"value_loss": value_loss, "actor_loss": actor_loss, "q_loss": q_loss}


def networks_of(trainer: xql.XQL) -> list[nn.Module]:
    """The twin's networks."""
    return [trainer.critic.q1, trainer.critic.q2, trainer.value, trainer.actor.net]


def drawn(config: xql.TrainConfig) -> dict[str, Tensor]:
    """An update's draws before its dropout."""
    found = {}
    if config.random_actions:
        found["uniform"] = 2 * torch.rand(config.batch_size, config.random_actions, ACTION_DIM) - 1
    if config.noise:
        found["normal"] = torch.randn(config.batch_size, ACTION_DIM)
    return found


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_xql(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """Critics, targets, V and policy agree; stretched rewards and target critics make errors and weights clipped."""
    config = xql.TrainConfig(device="cpu", **settings)
    dataset = Batch(*(column.double() for column in dataset))
    dataset = dataset._replace(rewards=12.0 * dataset.rewards, actions=bound * dataset.actions)
    torch.manual_seed(7)
    trainer = xql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    for critic in (trainer.critic_target.q1, trainer.critic_target.q2):
        critic.net[-1].weight.data.mul_(10.0)
    reference = Reference(config, trainer, bound)
    six_updates(xql, config, trainer, dataset, lambda batch: reference.update(batch, drawn(config)), LOG)
    theirs = [*reference.q, reference.v, reference.pi, *reference.q_t]
    ours = [*networks_of(trainer), trainer.critic_target.q1, trainer.critic_target.q2]
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=WEIGHTS)
    torch.testing.assert_close(trainer.actor.log_std, reference.log_std, rtol=0.0, atol=WEIGHTS)
    assert trainer.actor.log_std.any()
    expected_to_reach = {"no clip", "free", "capped", "far True", "far False"}
    expected_to_reach |= {"clip"} if config.max_clip else set()
    assert reference.reached == expected_to_reach | ({"noise"} if config.noise else set())
    reference.pi.eval()
    assert_same_actions(trainer.act(dataset.observations.numpy()), trainer.actor(dataset.observations)[0])
    torch.testing.assert_close(
        trainer.actor(dataset.observations)[0], bound * reference.pi(dataset.observations), rtol=0.0, atol=WEIGHTS
    )


@pytest.mark.parametrize(("error", "m"), [(-3.0, -1.0), (0.5, 0.5), (9.0, 7.0)])
def test_the_loss_of_one_error(error: float, m: float) -> None:
    """(e^z - z - 1) / e^m at the floor, in the ordinary range and at the clip, where half the gradient passes."""
    trainer = xql.create_trainer(xql.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    z = min(error, 7.0)
    found = trainer.gumbel_loss(torch.tensor([error], dtype=torch.float64))
    assert found.item() == pytest.approx((math.exp(z) - z - 1) / math.exp(m), rel=1e-12)
    at_the_clip = torch.tensor([7.0, 0.0], dtype=torch.float64, requires_grad=True)
    trainer.gumbel_loss(at_the_clip).backward()
    assert at_the_clip.grad is not None
    assert at_the_clip.grad[0].item() == pytest.approx((1 - math.exp(-7.0)) / 4, rel=1e-12)


def test_weights_start_orthogonal() -> None:
    """The gain is sqrt(2), also in last layers; the order is critic 1, critic 2, V, policy; all else is 0."""
    torch.manual_seed(7)
    trainer = xql.create_trainer(xql.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    for network in networks_of(trainer):
        linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        assert len(linear) == 3
        for layer in linear:
            fresh = nn.Linear(layer.in_features, layer.out_features)
            nn.init.orthogonal_(fresh.weight, math.sqrt(2))
            assert torch.equal(layer.weight, fresh.weight)
            assert not layer.bias.any()
    assert not trainer.actor.log_std.any()
    for ours, target in zip(trainer.critic.parameters(), trainer.critic_target.parameters(), strict=True):
        assert torch.equal(ours, target)
        assert not target.requires_grad


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """Its logarithm is between -5 and 2."""
    trainer = xql.create_trainer(xql.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    trainer.actor.log_std.data = torch.tensor([-6.0, -5.0, -1.0, 1.0, 2.0, 3.0])
    _, std = trainer.actor(dataset.observations.double())
    assert torch.equal(std, trainer.actor.log_std.clamp(-5.0, 2.0).exp().expand(len(dataset.observations), -1))


@pytest.mark.parametrize(
    ("schedule", "updates", "expected"),
    [("cosine", 0, 1.0), ("cosine", 5, 0.5), ("cosine", 10, 0.0), ("cosine", 15, 0.0), ("none", 15, 1.0)],
)
def test_the_learning_rate_falls_once(schedule: str, updates: int, expected: float) -> None:
    """It falls to 0 and stays there."""
    config = xql.TrainConfig(opt_decay_schedule=schedule, max_timesteps=10, actor_lr=1e-3)
    assert xql.actor_lr(config, updates) == pytest.approx(expected * 1e-3, abs=1e-12)


def test_masks_are_torchs_own() -> None:
    """Two masks drawn ahead equal the masks of two dropout layers from the same generator state."""
    config, layer, ones = xql.TrainConfig(actor_dropout=0.4, batch_size=64), nn.Dropout(0.4), torch.ones(64, 256)
    torch.manual_seed(3)
    _, noise = xql.draw_noise(config, ROWS, ACTION_DIM, CPU)
    torch.manual_seed(3)
    assert noise.dropout is not None
    assert all(torch.equal(mask, layer(ones)) for mask in noise.dropout)
    assert np.unique(noise.dropout[0]).size == 2
