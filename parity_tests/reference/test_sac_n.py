"""SAC-N: six updates, equal to the last bit."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import linear, relu

from corl_torch import sac_n
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    adam,
    assert_same_bits,
    columns_of,
    polyak,
    same_draws,
)
from shared.data import Batch
from shared.torch_side import take


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_critics": 3, "tau": 0.1, "discount": 0.9, "critic_learning_rate": 1e-3, "alpha_learning_rate": 1e-2}],
    ids=["default", "other"],
)
def test_sac_n(dataset: Batch, settings: dict[str, Any]) -> None:
    """Temperature; the policy with the new temperature; the critics with the new policy; the target."""
    config = sac_n.TrainConfig(device="cpu", **settings)
    trainer = sac_n.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    actor, critics = copy.deepcopy((trainer.actor, trainer.critic))
    critics_t = copy.deepcopy(critics)
    log_alpha = torch.tensor([0.0], requires_grad=True)
    actor_adam = adam(actor.parameters(), config.actor_learning_rate)
    critics_adam = adam(critics.parameters(), config.critic_learning_rate)
    alpha_adam = adam([log_alpha], config.alpha_learning_rate)

    def policy(s: Tensor) -> tuple[Tensor, Tensor]:
        for layer in actor.trunk[::2]:
            s = relu(linear(s, layer.weight, layer.bias))
        mu, log_sigma = (linear(s, head.weight, head.bias) for head in (actor.mu, actor.log_sigma))
        normal = Normal(mu, torch.exp(torch.clip(log_sigma, -5, 2)))
        u = normal.rsample()
        squashed = torch.tanh(u)
        log_prob = normal.log_prob(u).sum(axis=-1) - torch.log(1 - squashed.pow(2) + 1e-6).sum(axis=-1)
        return squashed, log_prob

    def ensemble(network: nn.Module, s: Tensor, a: Tensor) -> Tensor:
        x = torch.cat([s, a], dim=-1).unsqueeze(0).repeat_interleave(config.num_critics, dim=0)
        for layer in network.critic[:-1:2]:
            x = relu(x @ layer.weight + layer.bias)
        return (x @ network.critic[-1].weight + network.critic[-1].bias).squeeze(-1)

    same_draws()
    for _ in range(UPDATES):
        indices, noise = sac_n.draw_noise(config, ROWS, ACTION_DIM, CPU)
        metrics = trainer.update(take(dataset, indices), noise)
    same_draws()
    for _ in range(UPDATES):
        s, a, r, s2, d = columns_of(dataset, config.batch_size)
        with torch.no_grad():
            _, log_pi = policy(s)
        alpha_loss = (-log_alpha * (log_pi - ACTION_DIM)).mean()
        alpha_adam.zero_grad()
        alpha_loss.backward()
        alpha_adam.step()
        alpha = log_alpha.exp().detach()

        a_pi, log_pi = policy(s)
        q_pi = ensemble(critics, s, a_pi)
        actor_loss = (alpha * log_pi - q_pi.min(0).values).mean()
        actor_adam.zero_grad()
        actor_loss.backward()
        actor_adam.step()

        with torch.no_grad():
            a2, log_pi2 = policy(s2)
            v = (ensemble(critics_t, s2, a2).min(0).values - alpha * log_pi2).unsqueeze(-1)
            y = r + config.discount * (1 - d) * v
        critic_loss = ((ensemble(critics, s, a) - y.view(1, -1)) ** 2).mean(dim=1).sum(dim=0)
        critics_adam.zero_grad()
        critic_loss.backward()
        critics_adam.step()
        polyak(critics_t, critics, config.tau)
        with torch.no_grad():
            q_random = ensemble(critics, s, -1.0 + 2 * 1.0 * torch.rand_like(a))
    assert_same_bits(trainer, {"actor": actor, "critic": critics, "critic_target": critics_t})
    expected = {
        "alpha": alpha,
        "alpha_loss": alpha_loss,
        "actor_loss": actor_loss,
        "critic_loss": critic_loss,
        "batch_entropy": -log_pi.mean(),
        "q_policy_std": q_pi.std(0).mean(),
        "q_random_std": q_random.std(0).mean(),
    }
    assert torch.equal(trainer.log_alpha, log_alpha)
    assert {name: value.item() for name, value in metrics.items()} == {k: v.item() for k, v in expected.items()}


def test_weights_start_where_the_seed_says() -> None:
    """The actor's layers, then its heads again; the critics layer by layer, member by member, then the last again."""
    torch.manual_seed(7)
    trainer = sac_n.create_trainer(sac_n.TrainConfig(device="cpu", num_critics=3), STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    widths = [(STATE_DIM, 256), (256, 256), (256, 256), (256, ACTION_DIM), (256, ACTION_DIM)]
    layers = [nn.Linear(*width) for width in widths]
    heads = [torch.empty(shape).uniform_(-1e-3, 1e-3) for shape in ((ACTION_DIM, 256), (ACTION_DIM,)) * 2]
    for mine, other in zip(trainer.actor.trunk[::2], layers, strict=False):
        assert torch.equal(mine.weight, other.weight)
        assert (mine.bias == 0.1).all()
    mine = (
        trainer.actor.mu.weight,
        trainer.actor.mu.bias,
        trainer.actor.log_sigma.weight,
        trainer.actor.log_sigma.bias,
    )
    assert all(torch.equal(a, b) for a, b in zip(mine, heads, strict=True))
    for layer, (fan_in, width) in zip(
        trainer.critic.critic[::2], [(STATE_DIM + ACTION_DIM, 256), (256, 256), (256, 256), (256, 1)], strict=True
    ):
        bound = 1 / math.sqrt(width)
        weight = torch.stack([torch.empty(fan_in, width).uniform_(-bound, bound) for _ in range(3)])
        torch.empty(3, 1, width).uniform_(-bound, bound)
        if width > 1:
            torch.testing.assert_close(layer.weight, weight, rtol=1e-6, atol=0.0)
            assert (layer.bias == 0.1).all()
    last = trainer.critic.critic[-1]
    assert torch.equal(last.weight, torch.empty(3, 256, 1).uniform_(-3e-3, 3e-3))
    assert torch.equal(last.bias, torch.empty(3, 1, 1).uniform_(-3e-3, 3e-3))
