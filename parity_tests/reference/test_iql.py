"""IQL: six updates in six settings, equal to the last bit."""

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import mse_loss

from corl_torch import iql
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    adam,
    assert_same_actions,
    assert_same_bits,
    assert_same_weights,
    at_the_weights_of,
    mlp,
    polyak,
    six_updates,
)
from parity_tests.reference.images import moved, reader, shape_of, shown
from shared.data.transitions import Batch


class Seeing(nn.Module):
    """CORL's layers of width 256, after convolutions if there is an encoder; actions are appended to the features."""

    def __init__(self, encoder: str, action_dim: int, outputs: int) -> None:
        super().__init__()
        self.eyes, features = reader(encoder)
        self.layers = mlp(features + action_dim, 256, 256, outputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Runs the network on observations, and on actions for critics."""
        s, *a = inputs
        return self.layers(torch.cat([self.eyes(s), *a], 1))


def networks(encoder: str = "none") -> list[Seeing]:
    """Both critics, V and the policy's mean before its hyperbolic tangent, in the order in which they are drawn."""
    return [Seeing(encoder, actions, outputs) for actions, outputs in [(ACTION_DIM, 1)] * 2 + [(0, 1), (0, ACTION_DIM)]]


def networks_of(trainer: Any) -> list[nn.Module]:
    """The twin's networks, in the same order."""
    return [trainer.critic.q1, trainer.critic.q2, trainer.value, trainer.actor.net]


class ReferenceIQL:
    """IQL's update, term by term: each network steps before the next one's loss is taken."""

    def __init__(self, config: Any, trainer: Any, dropout: float | None, period: int) -> None:
        self.c = config
        q1, q2, self.v, self.mean = map(
            at_the_weights_of, networks_of(trainer), networks(getattr(config, "encoder", "none"))
        )
        self.q = nn.ModuleList([q1, q2])
        self.q_t = copy.deepcopy(self.q)
        layers = [layer for layer in self.mean.layers if isinstance(layer, nn.Linear)]
        after = [nn.ReLU()] if dropout is None else [nn.ReLU(), nn.Dropout(dropout)]
        self.mean.layers = nn.Sequential(layers[0], *after, layers[1], *copy.deepcopy(after), layers[2], nn.Tanh())
        self.log_std = nn.Parameter(torch.zeros(ACTION_DIM))
        own = [] if config.iql_deterministic else [self.log_std]
        self.v_adam, self.q_adam = (
            adam(self.v.parameters(), config.value_lr),
            adam(self.q.parameters(), config.critic_lr),
        )
        self.actor_adam = adam([*own, *self.mean.parameters()], config.actor_lr)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.actor_adam, period)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """One update in CORL's order; returns what CORL logs of it."""
        c = self.c
        if padding := getattr(c, "crop_padding", 0):
            s, s2 = (moved(images, padding) for images in (s, s2))
        with torch.no_grad():
            next_v = self.v(s2).squeeze(-1)
            target_q = torch.min(*(q(s, a).squeeze(-1) for q in self.q_t))
        adv = target_q - self.v(s).squeeze(-1)
        side = (adv < 0).float()
        value_loss = torch.mean(torch.abs(c.iql_tau - side) * adv**2)
        self.step(value_loss, self.v_adam)
        y = r.squeeze(-1) + (1.0 - d.squeeze(-1)) * c.discount * next_v
        losses = [mse_loss(q(s, a).squeeze(-1), y) for q in self.q]
        q_loss = sum(losses) / len(losses)
        self.step(q_loss, self.q_adam)
        polyak(self.q_t, self.q, c.tau)
        weight = torch.exp(c.inverse_temperature * adv.detach()).clamp(max=100.0)
        actor_loss = torch.mean(weight * self.cloning(self.mean(s), a))
        self.step(actor_loss, self.actor_adam)
        self.schedule.step()
        return {"value_loss": value_loss, "q_loss": q_loss, "actor_loss": actor_loss}

    def cloning(self, mean: Tensor, a: Tensor) -> Tensor:
        """The policy's cloning loss for each action, (B,)."""
        if self.c.iql_deterministic:
            return torch.sum((mean - a) ** 2, dim=1)
        return -Normal(mean, torch.exp(self.log_std.clamp(-20.0, 2.0))).log_prob(a).sum(-1)

    @staticmethod
    def step(loss: Tensor, optimizer: torch.optim.Adam) -> None:
        """One step."""
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"actor_dropout": 0.1, "iql_tau": 0.9, "inverse_temperature": 100.0, "max_timesteps": 4},
        {"iql_deterministic": True, "tau": 0.001, "discount": 0.9, "batch_size": 64},
        {"iql_deterministic": True, "actor_dropout": 0.3, "value_lr": 1e-3, "critic_lr": 1e-4, "actor_lr": 1e-2},
        {"encoder": "minatar", "actor_dropout": 0.1, "batch_size": 64},
        {"encoder": "minatar", "actor_dropout": 0.1, "batch_size": 64, "crop_padding": 2},
    ],
    ids=[
        "default",
        "dropout past the cosine's end",
        "deterministic",
        "deterministic with dropout",
        "images",
        "cropped images",
    ],
)
def test_iql(dataset: Batch, settings: dict[str, Any]) -> None:
    """Both critics, their targets, V and the policy are equal; so is the learning rate after six updates."""
    dataset = shown(dataset, settings)
    config = iql.TrainConfig(device="cpu", **settings)
    trainer = iql.create_trainer(config, shape_of(settings), ACTION_DIM, 1.0)
    reference = ReferenceIQL(config, trainer, config.actor_dropout, config.max_timesteps)
    six_updates(iql, config, trainer, dataset, lambda rows: reference.update(*rows))
    assert_same_bits(trainer, {"critic": reference.q, "critic_target": reference.q_t, "value": reference.v})
    assert_same_bits(trainer.actor, {"net": reference.mean})
    assert trainer.actor_lr_schedule.get_last_lr() == reference.schedule.get_last_lr()
    if not config.iql_deterministic:
        assert trainer.actor.log_std is not None
        assert torch.equal(trainer.actor.log_std, reference.log_std)
        assert trainer.actor.log_std.all()


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_masks_are_torchs_own(rate: float) -> None:
    """Two masks drawn ahead equal the masks of two dropout layers from the same generator state."""
    config, layer, ones = iql.TrainConfig(actor_dropout=rate, batch_size=64), nn.Dropout(rate), torch.ones(64, 256)
    torch.manual_seed(3)
    _, noise = iql.draw_noise(config, ROWS, ACTION_DIM, CPU)
    torch.manual_seed(3)
    assert noise.dropout is not None
    assert all(torch.equal(mask, layer(ones)) for mask in noise.dropout)
    assert all(mask.max() > 1.0 for mask in noise.dropout) == (rate > 0.0)


def assert_acting(twin: ModuleType, states: Tensor, without: float | None) -> None:
    """Checks that actions are those of CORL's policy in evaluation mode, bounded by the largest action.

    Its layers have CORL's numbers, which include dropout layers.
    """
    for dropout, numbers in ((0.5, "036"), (without, "024")):
        config = twin.TrainConfig(device="cpu", actor_dropout=dropout)
        trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 2.0)
        assert {name[0] for name in trainer.actor.net.net.state_dict()} == set(numbers)
        mean = ReferenceIQL(config, trainer, dropout or None, 6).mean.eval()
        assert_same_actions(trainer.act(states.numpy()), (2.0 * mean(states)).clamp(-2.0, 2.0))


def assert_same_start(twin: ModuleType, **settings: Any) -> None:
    """Checks that critic 1 is built first, then critic 2, V and the policy, whose deviation starts at 1."""
    torch.manual_seed(7)
    config = twin.TrainConfig(device="cpu", **settings)
    trainer = twin.create_trainer(config, shape_of(settings), ACTION_DIM, 1.0)
    torch.manual_seed(7)
    assert_same_weights(networks_of(trainer), networks(getattr(config, "encoder", "none")))
    assert trainer.actor.log_std is not None
    assert not trainer.actor.log_std.any()


def assert_bounded_deviation(twin: ModuleType, states: Tensor) -> None:
    """Its logarithm is between -20 and 2."""
    trainer = twin.create_trainer(twin.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    trainer.actor.log_std.data = torch.tensor([-30.0, -20.0, -1.0, 1.0, 2.0, 3.0])
    _, std = trainer.actor(states)
    assert torch.equal(std, trainer.actor.log_std.clamp(-20.0, 2.0).exp().expand(len(states), -1))


def test_acting_drops_nothing(dataset: Batch) -> None:
    """Acting does not use the deviation either."""
    assert_acting(iql, dataset.observations, without=None)


@pytest.mark.parametrize("encoder", ["none", "minatar"])
def test_weights_start_where_the_seed_says(encoder: str) -> None:
    """The order is CORL's, with each network's convolutions before its other layers."""
    assert_same_start(iql, encoder=encoder)


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """The bound is CORL's."""
    assert_bounded_deviation(iql, dataset.observations)
