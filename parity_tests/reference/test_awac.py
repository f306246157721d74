"""AWAC: six updates, equal to the last bit."""

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import mse_loss

from corl_torch import awac
from parity_tests.reference.common import (
    ACTION_DIM,
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
from shared.data.transitions import Batch


def networks(width: int) -> tuple[nn.Sequential, ...]:
    """The policy's mean and both critics, in the order in which they are drawn."""
    critic = STATE_DIM + ACTION_DIM, width, width, width, 1
    return mlp(STATE_DIM, width, width, width, ACTION_DIM), mlp(*critic), mlp(*critic)


class ReferenceAWAC:
    """CORL's update: critics, the policy on the new critics, both targets."""

    def __init__(self, config: Any, trainer: Any) -> None:
        self.config = config
        ours = trainer.actor._mlp, trainer.critic_1._mlp, trainer.critic_2._mlp
        self.mean, self.q1, self.q2 = map(at_the_weights_of, ours, networks(config.hidden_dim))
        self.log_std = nn.Parameter(torch.zeros(ACTION_DIM))
        self.q1_t, self.q2_t = copy.deepcopy((self.q1, self.q2))
        # The bare parameter is first in CORL's module.
        self.actor_adam = adam([self.log_std, *self.mean.parameters()], config.learning_rate)
        self.q1_adam, self.q2_adam = (
            adam(network.parameters(), config.learning_rate) for network in (self.q1, self.q2)
        )
        self.at_cap = 0

    def policy(self, s: Tensor) -> Normal:
        """The distribution of actions, (B, A)."""
        return Normal(self.mean(s), self.log_std.clamp(-20, 2).exp())

    def sample(self, s: Tensor) -> Tensor:
        """Draws an action from torch's generator and clips it, without a gradient."""
        with torch.no_grad():
            return self.policy(s).rsample().clamp_(-1.0, 1.0)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """One gradient step on a batch whose rewards and done flags are (B, 1)."""
        q1, q2, config = self.q1, self.q2, self.config
        with torch.no_grad():
            y = r + config.discount * (1.0 - d) * q_min(self.q1_t, self.q2_t, s2, self.sample(s2))
        # Drawn here from the policy, which does not change before the action is used, unlike the critics.
        a_pi = self.sample(s)
        inputs = torch.cat([s, a], dim=-1)
        critic_loss = mse_loss(q1(inputs), y) + mse_loss(q2(inputs), y)
        self.q1_adam.zero_grad()
        self.q2_adam.zero_grad()
        critic_loss.backward()
        self.q1_adam.step()
        self.q2_adam.step()
        with torch.no_grad():
            advantage = q_min(q1, q2, s, a) - q_min(q1, q2, s, a_pi)
            weights = torch.clamp_max(torch.exp(advantage / config.advantage_temperature), 100.0)
            self.at_cap += int((weights == 100.0).sum())
        actor_loss = (-self.policy(s).log_prob(a).sum(-1, keepdim=True) * weights).mean()
        self.actor_adam.zero_grad()
        actor_loss.backward()
        self.actor_adam.step()
        polyak(self.q1_t, q1, config.tau)
        polyak(self.q2_t, q2, config.tau)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss}


def q_min(first: nn.Module, second: nn.Module, s: Tensor, a: Tensor) -> Tensor:
    """The smaller value of two critics, (B, 1)."""
    inputs = torch.cat([s, a], dim=-1)
    return torch.min(first(inputs), second(inputs))


def assert_same_awac(trainer: Any, reference: ReferenceAWAC, states: Tensor) -> None:
    """Checks that all parameters and the policy's actions are equal."""
    parts = {"critic_1": reference.q1, "critic_2": reference.q2}
    assert_same_bits(trainer, parts | {"critic_1_target": reference.q1_t, "critic_2_target": reference.q2_t})
    assert_same_bits(trainer.actor, {"_mlp": reference.mean})
    assert torch.equal(trainer.actor._log_std, reference.log_std)
    assert_same_actions(trainer.act(states.numpy()), reference.mean(states))


OTHER = {"hidden_dim": 64, "batch_size": 64, "learning_rate": 1e-3, "discount": 0.9}


@pytest.mark.parametrize(
    "settings", [{}, OTHER | {"advantage_temperature": 0.001, "tau": 0.1}], ids=["default", "weights at their cap"]
)
def test_awac(dataset: Batch, settings: dict[str, Any]) -> None:
    """The update trains the critics, then the policy with the new critics, then both targets."""
    config = awac.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = awac.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    reference = ReferenceAWAC(config, trainer)
    six_updates(awac, config, trainer, dataset, lambda rows: reference.update(*rows))
    assert (reference.at_cap > 0) == bool(settings)
    assert_same_awac(trainer, reference, dataset.observations)


def assert_same_start(twin: ModuleType) -> None:
    """Checks that the actor is built first, then critic 1, and that the deviation starts at 1."""
    torch.manual_seed(7)
    trainer = twin.create_trainer(twin.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    assert_same_weights([trainer.actor._mlp, trainer.critic_1, trainer.critic_2], networks(256))
    assert not trainer.actor._log_std.any()


def assert_bounded_deviation(twin: ModuleType, states: Tensor) -> None:
    """Its logarithm is between -20 and 2."""
    trainer = twin.create_trainer(twin.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    trainer.actor._log_std.data = torch.tensor([-30.0, -20.0, -1.0, 1.0, 2.0, 3.0])
    _, std = trainer.actor(states)
    assert torch.equal(std, trainer.actor._log_std.clamp(-20.0, 2.0).exp().expand(len(states), -1))


def test_weights_start_where_the_seed_says() -> None:
    """The order is CORL's."""
    assert_same_start(awac)


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """The bound is CORL's."""
    assert_bounded_deviation(awac, dataset.observations)
