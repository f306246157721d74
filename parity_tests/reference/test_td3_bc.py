"""TD3+BC: six updates, equal to the last bit."""

import copy

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
    assert_same_bits,
    assert_same_log,
    columns_of,
    polyak,
    same_draws,
)
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take


def test_td3_bc(dataset: Batch) -> None:
    """TD3+BC: critics, the delayed actor, and all three targets."""
    config = td3_bc.TrainConfig(device="cpu")
    trainer = td3_bc.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    actor, q1, q2 = copy.deepcopy((trainer.actor.net, trainer.critic_1.net, trainer.critic_2.net))
    actor_t, q1_t, q2_t = copy.deepcopy((actor, q1, q2))
    actor_adam, q1_adam, q2_adam = (adam(network.parameters(), 3e-4) for network in (actor, q1, q2))
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = td3_bc.draw_noise(config, ROWS, ACTION_DIM, CPU)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    for step in range(1, UPDATES + 1):
        s, a, r, s2, d = columns_of(dataset, config.batch_size)
        with torch.no_grad():
            smoothing = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
            a2 = torch.cat([s2, (actor_t(s2) + smoothing).clamp(-1.0, 1.0)], 1)
            y = r + (1 - d) * 0.99 * torch.min(q1_t(a2), q2_t(a2))
        critic_loss = mse_loss(q1(torch.cat([s, a], 1)), y) + mse_loss(q2(torch.cat([s, a], 1)), y)
        q1_adam.zero_grad()
        q2_adam.zero_grad()
        critic_loss.backward()
        q1_adam.step()
        q2_adam.step()
        expected.append({"critic_loss": critic_loss})
        if step % 2 == 0:
            pi = actor(s)
            q = q1(torch.cat([s, pi], 1))
            actor_loss = -(2.5 / q.abs().mean().detach()) * q.mean() + mse_loss(pi, a)
            actor_adam.zero_grad()
            actor_loss.backward()
            actor_adam.step()
            expected[-1]["actor_loss"] = actor_loss
            for target, source in ((q1_t, q1), (q2_t, q2), (actor_t, actor)):
                polyak(target, source, 0.005)
    assert_same_log(logs, expected)
    parts = {"actor": actor, "critic_1": q1, "critic_2": q2}
    assert_same_bits(trainer, parts | {"actor_target": actor_t, "critic_1_target": q1_t, "critic_2_target": q2_t})


def test_weights_start_where_the_seed_says() -> None:
    """The actor is built first."""
    torch.manual_seed(7)
    trainer = td3_bc.create_trainer(td3_bc.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    for mine, sizes in ((trainer.actor.net[0], (STATE_DIM, 256)), (trainer.actor.net[2], (256, 256))):
        assert torch.equal(mine.weight, nn.Linear(*sizes).weight)
