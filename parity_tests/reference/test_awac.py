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
from shared.frameworks.torch_side import take


@pytest.mark.parametrize("settings", [{}, {"awac_lambda": 0.01, "tau": 0.1}], ids=["default", "weights at their cap"])
def test_awac(dataset: Batch, settings: dict[str, Any]) -> None:
    """Critics, the policy on the new critics, both targets."""
    config = awac.TrainConfig(device="cpu", **settings)
    trainer = awac.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    mean, log_std = copy.deepcopy((trainer.actor._mlp, trainer.actor._log_std))
    q1, q2 = copy.deepcopy((trainer.critic_1._mlp, trainer.critic_2._mlp))
    q1_t, q2_t = copy.deepcopy((q1, q2))
    # The bare parameter comes first in CORL's module.
    actor_adam = adam([log_std, *mean.parameters()], 3e-4)
    q1_adam, q2_adam = (adam(network.parameters(), 3e-4) for network in (q1, q2))

    def policy(s: Tensor) -> Normal:
        return Normal(mean(s), log_std.clamp(-20, 2).exp())

    def q_min(first: nn.Module, second: nn.Module, s: Tensor, a: Tensor) -> Tensor:
        inputs = torch.cat([s, a], dim=-1)
        return torch.min(first(inputs), second(inputs))

    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = awac.draw_noise(config, ROWS, ACTION_DIM, CPU)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    at_cap = 0
    for _ in range(UPDATES):
        s, a, r, s2, d = columns_of(dataset, config.batch_size)
        with torch.no_grad():
            a2 = policy(s2).rsample().clamp_(-1.0, 1.0)
            y = r + 0.99 * (1.0 - d) * q_min(q1_t, q2_t, s2, a2)
            # Drawn here, at the old policy, which does not change before it is used; the critics do.
            a_pi = policy(s).rsample().clamp_(-1.0, 1.0)
        inputs = torch.cat([s, a], dim=-1)
        critic_loss = mse_loss(q1(inputs), y) + mse_loss(q2(inputs), y)
        q1_adam.zero_grad()
        q2_adam.zero_grad()
        critic_loss.backward()
        q1_adam.step()
        q2_adam.step()
        with torch.no_grad():
            advantage = q_min(q1, q2, s, a) - q_min(q1, q2, s, a_pi)
            weights = torch.clamp_max(torch.exp(advantage / config.awac_lambda), 100.0)
            at_cap += int((weights == 100.0).sum())
        actor_loss = (-policy(s).log_prob(a).sum(-1, keepdim=True) * weights).mean()
        actor_adam.zero_grad()
        actor_loss.backward()
        actor_adam.step()
        polyak(q1_t, q1, config.tau)
        polyak(q2_t, q2, config.tau)
        expected.append({"critic_loss": critic_loss, "actor_loss": actor_loss})
    assert_same_log(logs, expected)
    assert (at_cap > 0) == bool(settings)
    assert_same_bits(trainer, {"critic_1": q1, "critic_2": q2, "critic_1_target": q1_t, "critic_2_target": q2_t})
    assert torch.equal(trainer.actor._log_std, log_std)
    for mine, other in zip(trainer.actor._mlp.parameters(), mean.parameters(), strict=True):
        assert torch.equal(mine, other)


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
