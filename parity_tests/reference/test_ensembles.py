"""SAC-N, EDAC and LB-SAC: six updates, bitwise equal for SAC-N, and within 3e-6 for the others."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import layer_norm, linear, relu

from corl_torch import edac, lb_sac
from parity_tests.engine.precision import both_in
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    adam,
    assert_same_actions,
    assert_same_log,
    columns_of,
    polyak,
    same_draws,
)
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take
from shared.frameworks.twins import load_twin

SMALL = {"batch_size": 64, "hidden_dim": 64, "n_critics": 3}
OTHER = SMALL | {"tau": 0.1, "discount": 0.9, "critic_lr": 1e-3, "temperature_lr": 1e-2}
CASES: list[tuple[str, dict[str, Any], float]] = [
    ("sac_n", {}, 0.0),
    ("sac_n", OTHER, 0.0),
    ("edac", {}, 3e-6),
    ("edac", OTHER | {"eta": 5.0}, 3e-6),
    ("lb_sac", {"batch_size": 256}, 3e-6),
    ("lb_sac", {"batch_size": 64, "critic_ln": True}, 3e-6),
    ("lb_sac", OTHER | {"critic_ln": True, "edac_init": True}, 3e-6),
]


def policy(actor: nn.Module, s: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """A scaled, squashed sample and its log-probability."""
    for layer in actor.trunk[::2]:
        s = relu(linear(s, layer.weight, layer.bias))
    mu, log_sigma = (linear(s, head.weight, head.bias) for head in (actor.mu, actor.log_sigma))
    normal = Normal(mu, torch.exp(torch.clip(log_sigma, -5, 2)))
    u = normal.rsample()
    squashed = torch.tanh(u)
    return bound * squashed, normal.log_prob(u).sum(axis=-1) - torch.log(1 - squashed.pow(2) + 1e-6).sum(axis=-1)


def many(x: Tensor, count: int) -> Tensor:
    """Repeats a tensor along a new first axis."""
    return x.unsqueeze(0).repeat_interleave(count, dim=0)


def ensemble(network: nn.Module, s: Tensor, a: Tensor) -> Tensor:
    """The critics' values, (E, B)."""
    linears = [layer for layer in network.critic if layer.__class__.__name__ == "VectorizedLinear"]
    norms = [layer for layer in network.critic if isinstance(layer, nn.LayerNorm)]
    x = torch.cat([s, a], dim=-1)
    if x.ndim == 2:
        x = many(x, len(linears[0].weight))
    for number, layer in enumerate(linears[:-1]):
        x = x @ layer.weight + layer.bias
        if norms:
            x = layer_norm(x, x.shape[-1:], norms[number].weight, norms[number].bias, 1e-5)
        x = relu(x)
    return (x @ linears[-1].weight + linears[-1].bias).squeeze(-1)


def alikeness(critics: nn.Module, s: Tensor, a: Tensor, count: int) -> Tensor:
    """EDAC's term, computed in a second pass with the data's actions as leaves."""
    many_s, many_a = many(s, count), many(a, count).requires_grad_(True)
    total = ensemble(critics, many_s, many_a).sum()
    (slopes,) = torch.autograd.grad(total, many_a, retain_graph=True, create_graph=True)
    slopes = (slopes / (torch.norm(slopes, p=2, dim=2).unsqueeze(-1) + 1e-10)).transpose(0, 1)
    others = 1 - torch.eye(count)
    return ((slopes @ slopes.permute(0, 2, 1)) * others).sum(dim=(1, 2)).mean() / (count - 1)


def critics_loss(name: str, config: Any, critics: nn.Module, s: Tensor, a: Tensor, y: Tensor) -> Tensor:
    """The critics' loss: a mean over the ensemble for LB-SAC, otherwise a sum; EDAC adds the critics' similarity."""
    squares = (ensemble(critics, s, a) - y.view(1, -1)) ** 2
    if name == "lb_sac":
        return squares.mean()
    loss = squares.mean(dim=1).sum(dim=0)
    return loss + config.eta * alikeness(critics, s, a, config.n_critics) if name == "edac" else loss


@pytest.mark.parametrize(("name", "settings", "tolerance"), CASES)
def test_six_updates(dataset: Batch, name: str, settings: dict[str, Any], tolerance: float) -> None:
    """The order is temperature, policy with the new temperature, critics with the new policy, target."""
    twin = load_twin("torch", name)
    config = twin.TrainConfig(device="cpu", **settings)
    bound = 2.0 if "tau" in settings else 1.0
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    actor, critics = copy.deepcopy((trainer.actor, trainer.critic))
    critics_t = copy.deepcopy(critics)
    log_alpha = torch.tensor([0.0], requires_grad=True)
    actor_adam = adam(actor.parameters(), config.actor_lr)
    critics_adam = adam(critics.parameters(), config.critic_lr)
    alpha_adam = adam([log_alpha], config.temperature_lr)

    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = twin.draw_noise(config, ROWS, ACTION_DIM, CPU)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    for _ in range(UPDATES):
        s, a, r, s2, d = columns_of(dataset, config.batch_size)
        with torch.no_grad():
            _, log_pi = policy(actor, s, bound)
        alpha_loss = (-log_alpha * (log_pi - ACTION_DIM)).mean()
        alpha_adam.zero_grad()
        alpha_loss.backward()
        alpha_adam.step()
        alpha = log_alpha.exp().detach()

        a_pi, log_pi = policy(actor, s, bound)
        q_pi = ensemble(critics, s, a_pi)
        actor_loss = (alpha * log_pi - q_pi.min(0).values).mean()
        actor_adam.zero_grad()
        actor_loss.backward()
        actor_adam.step()

        with torch.no_grad():
            a2, log_pi2 = policy(actor, s2, bound)
            v = (ensemble(critics_t, s2, a2).min(0).values - alpha * log_pi2).unsqueeze(-1)
            y = r + config.discount * (1 - d) * v
        critic_loss = critics_loss(name, config, critics, s, a, y)
        critics_adam.zero_grad()
        critic_loss.backward()
        critics_adam.step()
        polyak(critics_t, critics, config.tau)
        with torch.no_grad():
            q_random = ensemble(critics, s, -bound + 2 * bound * torch.rand_like(a))
        log = {
            "alpha": alpha,
            "alpha_loss": alpha_loss,
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "batch_entropy": -log_pi.mean(),
            "q_policy_std": q_pi.std(0).mean(),
            "q_random_std": q_random.std(0).mean(),
        }
        expected.append(log)
    assert_same_log(logs, expected, tolerance=1e-4 if tolerance else 0.0)
    parts = {"actor": actor, "critic": critics, "critic_target": critics_t}
    apart = [
        (mine - other).abs().max().item()
        for part, theirs in parts.items()
        for mine, other in zip(getattr(trainer, part).parameters(), theirs.parameters(), strict=True)
    ]
    assert max([*apart, (trainer.log_temperature - log_alpha).abs().item()]) <= tolerance
    assert trainer.total_it == UPDATES
    norms = [layer for layer in critics.critic if isinstance(layer, nn.LayerNorm)]
    assert len(norms) == (3 if settings.get("critic_ln") else 0)
    assert [*trainer.actor.state_dict()] == CORLS_NAMES


# The layers' numbers include the ReLU layers.
CORLS_NAMES = [
    f"{layer}.{part}" for layer in ("trunk.0", "trunk.2", "trunk.4", "mu", "log_sigma") for part in ("weight", "bias")
]


@pytest.mark.parametrize("name", ["sac_n", "edac", "lb_sac"])
def test_the_policy(dataset: Batch, name: str) -> None:
    """Densities agree in double precision if actions reach their bounds and deviations exceed theirs; so do actions."""
    twin = load_twin("torch", name)
    with both_in("float64"):
        trainer = twin.create_trainer(twin.TrainConfig(device="cpu", **SMALL), STATE_DIM, ACTION_DIM, 2.0)
        actor, s = trainer.actor, dataset.observations[:500].double()
        for head in (actor.mu, actor.log_sigma):
            head.weight.data *= 6.0 / head(actor.trunk(s)).std()
        same_draws()
        expected, log_prob = policy(actor, s, 2.0)
        same_draws()
        found, found_log_prob = twin.sample(actor, s, torch.randn(500, ACTION_DIM))
        assert (expected.abs() > 2.0 - 1e-7).any()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found_log_prob, log_prob, rtol=1e-12, atol=1e-12)
        _, deviation = actor(s)
        torch.testing.assert_close(deviation, actor.log_sigma(actor.trunk(s)).clip(-5, 2).exp(), rtol=1e-12, atol=0.0)
        assert deviation.log().min() == -5.0
        assert deviation.log().max() == 2.0
        assert_same_actions(trainer.act(s.numpy()), 2.0 * torch.tanh(actor.mu(actor.trunk(s))))


@pytest.mark.parametrize("size", [1.0, 1e-10])
def test_how_alike_critics_are(size: float) -> None:
    """It is the mean over rows of all pairs' cosines, divided by critics - 1; short slopes count for less."""
    slopes = size * torch.randn(3, 50, ACTION_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = slopes / (torch.norm(slopes, p=2, dim=2, keepdim=True) + 1e-10)
    pairs = [(x[i] * x[j]).sum(-1).mean() for i in range(3) for j in range(3) if i != j]
    torch.testing.assert_close(edac.alikeness(slopes), sum(pairs) / 2.0, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    ("name", "settings", "every"), [("sac_n", {}, 2), ("edac", {}, 2), ("lb_sac", {"edac_init": True}, 3)]
)
def test_weights_near_0_start_where_the_seed_says(name: str, settings: dict[str, Any], every: int) -> None:
    """The actor's heads are drawn again after its layers, and the critics' last layer after all members' layers."""
    twin = load_twin("torch", name)
    torch.manual_seed(7)
    trainer = twin.create_trainer(twin.TrainConfig(device="cpu", n_critics=3, **settings), STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    widths = [(STATE_DIM, 256), (256, 256), (256, 256), (256, ACTION_DIM), (256, ACTION_DIM)]
    layers = [nn.Linear(*width) for width in widths]
    heads = [torch.empty(shape).uniform_(-1e-3, 1e-3) for shape in ((ACTION_DIM, 256), (ACTION_DIM,)) * 2]
    for mine, other in zip(trainer.actor.trunk[::2], layers[:3], strict=True):
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
        trainer.critic.critic[::every], [(STATE_DIM + ACTION_DIM, 256), (256, 256), (256, 256), (256, 1)], strict=True
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


def test_lb_sacs_weights_start_where_the_seed_says() -> None:
    """Nothing is drawn again: the critics' last layer keeps PyTorch's default, with a fan-in of 1 here."""
    torch.manual_seed(7)
    trainer = lb_sac.create_trainer(lb_sac.TrainConfig(device="cpu", n_critics=3), STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    widths = [(STATE_DIM, 256), (256, 256), (256, 256), (256, ACTION_DIM), (256, ACTION_DIM)]
    built = [*trainer.actor.trunk[::2], trainer.actor.mu, trainer.actor.log_sigma]
    for mine, width in zip(built, widths, strict=True):
        other = nn.Linear(*width)
        assert torch.equal(mine.weight, other.weight)
        assert torch.equal(mine.bias, other.bias)
    for layer, (fan_in, fan_out) in zip(
        trainer.critic.critic[::3], [(STATE_DIM + ACTION_DIM, 256), (256, 256), (256, 256), (256, 1)], strict=True
    ):
        bound = 1 / math.sqrt(fan_out)
        weight = torch.stack([torch.empty(fan_in, fan_out).uniform_(-bound, bound) for _ in range(3)])
        torch.testing.assert_close(layer.weight, weight, rtol=1e-6, atol=0.0)
        torch.testing.assert_close(layer.bias, torch.empty(3, 1, fan_out).uniform_(-bound, bound), rtol=1e-6, atol=0.0)
