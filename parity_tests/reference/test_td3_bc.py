"""TD3+BC: six updates, equal to the last bit."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from corl_torch import td3_bc
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
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take

OTHER = {"policy_noise": 0.4, "noise_clip": 0.3, "policy_freq": 3, "alpha": 1.0, "tau": 0.1, "discount": 0.9}


def networks() -> tuple[nn.Sequential, nn.Sequential, nn.Sequential]:
    """CORL's policy, before its actions are scaled, and its critics, in the order in which they are drawn."""
    actor = mlp(STATE_DIM, 256, 256, ACTION_DIM, end=nn.Tanh())
    q1, q2 = (mlp(STATE_DIM + ACTION_DIM, 256, 256, 1) for _ in range(2))
    return actor, q1, q2


@pytest.mark.parametrize(
    ("settings", "bound", "stretch"),
    [({}, 1.0, 1.0), (OTHER | {"batch_size": 64}, 2.0, 20.0)],
    ids=["default", "at the bounds"],
)
def test_td3_bc(dataset: Batch, settings: dict[str, Any], bound: float, stretch: float) -> None:
    """Critics, the delayed actor and all three targets are equal, with the policy's last layer stretched."""
    c = td3_bc.TrainConfig(device="cpu", **settings)
    trainer = td3_bc.create_trainer(c, STATE_DIM, ACTION_DIM, bound)
    for policy in (trainer.actor, trainer.actor_target):
        policy.net[4].weight.data.mul_(stretch)
    ours = trainer.actor, trainer.critic_1, trainer.critic_2
    actor, q1, q2 = (at_the_weights_of(*both) for both in zip(ours, networks(), strict=True))
    actor_t, q1_t, q2_t = copy.deepcopy((actor, q1, q2))
    actor_adam, q1_adam, q2_adam = (adam(network.parameters(), 3e-4) for network in (actor, q1, q2))
    logs, expected, cut = [], [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = td3_bc.draw_noise(c, ROWS, ACTION_DIM, CPU)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    for step in range(1, UPDATES + 1):
        s, a, r, s2, d = columns_of(dataset, c.batch_size)
        with torch.no_grad():
            smoothing = (torch.randn_like(a) * (c.policy_noise * bound)).clamp(
                -c.noise_clip * bound, c.noise_clip * bound
            )
            smoothed = bound * actor_t(s2) + smoothing
            a2 = torch.cat([s2, smoothed.clamp(-bound, bound)], 1)
            y = r + (1 - d) * c.discount * torch.min(q1_t(a2), q2_t(a2))
        cut.append(smoothed.max() > bound and smoothed.min() < -bound)
        critic_loss = mse_loss(q1(torch.cat([s, a], 1)), y) + mse_loss(q2(torch.cat([s, a], 1)), y)
        q1_adam.zero_grad()
        q2_adam.zero_grad()
        critic_loss.backward()
        q1_adam.step()
        q2_adam.step()
        expected.append({"critic_loss": critic_loss})
        if step % c.policy_freq == 0:
            pi = bound * actor(s)
            q = q1(torch.cat([s, pi], 1))
            actor_loss = -(c.alpha / q.abs().mean().detach()) * q.mean() + mse_loss(pi, a)
            actor_adam.zero_grad()
            actor_loss.backward()
            actor_adam.step()
            expected[-1]["actor_loss"] = actor_loss
            for target, source in ((q1_t, q1), (q2_t, q2), (actor_t, actor)):
                polyak(target, source, c.tau)
    assert_same_log(logs, expected)
    assert all(cut) == bool(settings)
    parts = {"actor": actor, "critic_1": q1, "critic_2": q2}
    assert_same_bits(trainer, parts | {"actor_target": actor_t, "critic_1_target": q1_t, "critic_2_target": q2_t})
    assert_same_actions(trainer.act(dataset.observations.numpy()), bound * actor(dataset.observations))
    assert trainer.total_it == UPDATES


def test_weights_start_where_the_seed_says() -> None:
    """The actor is built first, then critic 1."""
    torch.manual_seed(7)
    trainer = td3_bc.create_trainer(td3_bc.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    assert_same_weights([trainer.actor, trainer.critic_1, trainer.critic_2], networks())
