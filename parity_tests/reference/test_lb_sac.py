"""LB-SAC: six updates, within 3e-6, with and without layer norm and EDAC's initialisation."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import layer_norm, linear, relu

from corl_torch import lb_sac
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
    [{}, {"critic_layernorm": True}, {"critic_layernorm": True, "edac_init": True, "tau": 0.1, "discount": 0.9}],
    ids=["default", "layer norm", "other"],
)
def test_lb_sac(dataset: Batch, settings: dict[str, Any]) -> None:
    """As SAC-N, but the critics' loss is a mean over the ensemble too."""
    config = lb_sac.TrainConfig(device="cpu", batch_size=256, **settings)
    trainer = lb_sac.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
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
        for layer, norm in zip(network.critic[:-1:3], network.critic[1::3], strict=True):
            x = x @ layer.weight + layer.bias
            if config.critic_layernorm:
                x = layer_norm(x, (256,), norm.weight, norm.bias, 1e-5)
            x = relu(x)
        return (x @ network.critic[-1].weight + network.critic[-1].bias).squeeze(-1)

    same_draws()
    for _ in range(UPDATES):
        indices, noise = lb_sac.draw_noise(config, ROWS, ACTION_DIM, CPU)
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
        critic_loss = ((ensemble(critics, s, a) - y.view(1, -1)) ** 2).mean()
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


def test_weights_start_where_the_seed_says() -> None:
    """Nothing is drawn again: the critics' last layer keeps PyTorch's default, whose fan-in is here 1."""
    torch.manual_seed(7)
    trainer = lb_sac.create_trainer(lb_sac.TrainConfig(device="cpu", num_critics=3), STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    widths = [(STATE_DIM, 256), (256, 256), (256, 256), (256, ACTION_DIM), (256, ACTION_DIM)]
    built = [*trainer.actor.trunk[::2], trainer.actor.mu, trainer.actor.log_sigma]
    for mine, width in zip(built, widths, strict=True):
        other = nn.Linear(*width)
        assert torch.equal(mine.weight, other.weight)
        assert torch.equal(mine.bias, other.bias)
    for layer, (fan_in, width) in zip(
        trainer.critic.critic[::3], [(STATE_DIM + ACTION_DIM, 256), (256, 256), (256, 256), (256, 1)], strict=True
    ):
        bound = 1 / math.sqrt(width)
        weight = torch.stack([torch.empty(fan_in, width).uniform_(-bound, bound) for _ in range(3)])
        torch.testing.assert_close(layer.weight, weight, rtol=1e-6, atol=0.0)
        torch.testing.assert_close(layer.bias, torch.empty(3, 1, width).uniform_(-bound, bound), rtol=1e-6, atol=0.0)
