"""AWAC: six updates, equal to the last bit."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import mse_loss

from corl_torch import awac
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    adam,
    assert_same_bits,
    assert_same_log,
    columns_of,
    polyak,
    same_draws,
)
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take


class ReferenceAWAC:
    """CORL's update: critics, the policy on the new critics, both targets."""

    def __init__(self, config: Any, trainer: Any) -> None:
        self.config = config
        self.mean, self.log_std = copy.deepcopy((trainer.actor._mlp, trainer.actor._log_std))
        self.q1, self.q2 = copy.deepcopy((trainer.critic_1._mlp, trainer.critic_2._mlp))
        self.q1_t, self.q2_t = copy.deepcopy((self.q1, self.q2))
        # The bare parameter comes first in CORL's module.
        self.actor_adam = adam([self.log_std, *self.mean.parameters()], 3e-4)
        self.q1_adam, self.q2_adam = (adam(network.parameters(), 3e-4) for network in (self.q1, self.q2))
        self.at_cap = 0

    def policy(self, s: Tensor) -> Normal:
        """The distribution of actions, (B, A)."""
        return Normal(self.mean(s), self.log_std.clamp(-20, 2).exp())

    def sample(self, s: Tensor) -> Tensor:
        """Drawn from torch's generator and cut, without a gradient."""
        with torch.no_grad():
            return self.policy(s).rsample().clamp_(-1.0, 1.0)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """One gradient step on a batch whose rewards and done flags are (B, 1)."""
        q1, q2, config = self.q1, self.q2, self.config
        with torch.no_grad():
            y = r + 0.99 * (1.0 - d) * q_min(self.q1_t, self.q2_t, s2, self.sample(s2))
        # Drawn here, at the old policy, which does not change before it is used; the critics do.
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
            weights = torch.clamp_max(torch.exp(advantage / config.awac_lambda), 100.0)
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


def assert_same_awac(trainer: Any, reference: ReferenceAWAC) -> None:
    """Every parameter."""
    parts = {"critic_1": reference.q1, "critic_2": reference.q2}
    assert_same_bits(trainer, parts | {"critic_1_target": reference.q1_t, "critic_2_target": reference.q2_t})
    assert_same_bits(trainer.actor, {"_mlp": reference.mean})
    assert torch.equal(trainer.actor._log_std, reference.log_std)


@pytest.mark.parametrize("settings", [{}, {"awac_lambda": 0.01, "tau": 0.1}], ids=["default", "weights at their cap"])
def test_awac(dataset: Batch, settings: dict[str, Any]) -> None:
    """Critics, the policy on the new critics, both targets."""
    config = awac.TrainConfig(device="cpu", **settings)
    trainer = awac.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    reference, logs = ReferenceAWAC(config, trainer), []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = awac.draw_noise(config, ROWS, ACTION_DIM, CPU)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    assert_same_log(logs, [reference.update(*columns_of(dataset, config.batch_size)) for _ in range(UPDATES)])
    assert (reference.at_cap > 0) == bool(settings)
    assert_same_awac(trainer, reference)


def test_weights_start_where_the_seed_says() -> None:
    """The actor is built first, then critic 1."""
    torch.manual_seed(7)
    trainer = awac.create_trainer(awac.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    layers = [nn.Linear(STATE_DIM, 256), nn.Linear(256, 256), nn.Linear(256, 256), nn.Linear(256, ACTION_DIM)]
    layers += [nn.Linear(STATE_DIM + ACTION_DIM, 256)]
    built = [layer for part in (trainer.actor, trainer.critic_1) for layer in part._mlp if isinstance(layer, nn.Linear)]
    for mine, other in zip(built, layers, strict=False):
        assert torch.equal(mine.weight, other.weight)
