"""EDAC: six updates, within 3e-6: pairs of critics are compared one by one here, all at once in the twin."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import linear, relu

from corl_torch import edac
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    adam,
    columns_of,
    polyak,
    same_draws,
)
from shared.data import Batch
from shared.torch_side import take


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "num_critics": 3,
            "eta": 5.0,
            "tau": 0.1,
            "discount": 0.9,
            "critic_learning_rate": 1e-3,
            "alpha_learning_rate": 1e-2,
        },
    ],
    ids=["default", "other"],
)
def test_edac(dataset: Batch, settings: dict[str, Any]) -> None:
    """As SAC-N; the critics' loss has a second pass, on the data's actions as leaves."""
    config = edac.TrainConfig(device="cpu", **settings)
    trainer = edac.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
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
        x = torch.cat([s, a], dim=-1)
        if x.ndim == 2:
            x = x.unsqueeze(0).repeat_interleave(config.num_critics, dim=0)
        for layer in network.critic[:-1:2]:
            x = relu(x @ layer.weight + layer.bias)
        return (x @ network.critic[-1].weight + network.critic[-1].bias).squeeze(-1)

    same_draws()
    for _ in range(UPDATES):
        indices, noise = edac.draw_noise(config, ROWS, ACTION_DIM, CPU)
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
        many_s, many_a = (x.unsqueeze(0).repeat_interleave(config.num_critics, dim=0) for x in (s, a))
        many_a.requires_grad_(True)
        total = ensemble(critics, many_s, many_a).sum()
        (slopes,) = torch.autograd.grad(total, many_a, retain_graph=True, create_graph=True)
        slopes = (slopes / (torch.norm(slopes, p=2, dim=2).unsqueeze(-1) + 1e-10)).transpose(0, 1)
        others = 1 - torch.eye(config.num_critics)
        alike = ((slopes @ slopes.permute(0, 2, 1)) * others).sum(dim=(1, 2)).mean() / (config.num_critics - 1)
        critic_loss = critic_loss + config.eta * alike
        critics_adam.zero_grad()
        critic_loss.backward()
        critics_adam.step()
        polyak(critics_t, critics, config.tau)
        with torch.no_grad():
            q_random = ensemble(critics, s, -1.0 + 2 * 1.0 * torch.rand_like(a))
    expected = {
        "alpha": alpha,
        "alpha_loss": alpha_loss,
        "actor_loss": actor_loss,
        "critic_loss": critic_loss,
        "batch_entropy": -log_pi.mean(),
        "q_policy_std": q_pi.std(0).mean(),
        "q_random_std": q_random.std(0).mean(),
    }
    parts = {"actor": actor, "critic": critics, "critic_target": critics_t}
    apart = [
        (mine - other).abs().max().item()
        for part, theirs in parts.items()
        for mine, other in zip(getattr(trainer, part).parameters(), theirs.parameters(), strict=True)
    ]
    assert max([*apart, (trainer.log_alpha - log_alpha).abs().item()]) <= 3e-6
    found, expected = ({k: v.item() for k, v in values.items()} for values in (metrics, expected))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
