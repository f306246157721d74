"""SAC: six updates are equal up to rounding in double precision."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torch.nn.functional import mse_loss

from corl_torch.online import sac
from parity_tests.engine.precision import both_in
from parity_tests.reference.common import (
    ACTION_DIM,
    STATE_DIM,
    adam,
    assert_same_weights,
    at_the_weights_of,
    mlp,
    polyak,
    six_updates,
)
from parity_tests.reference.d3rlpy import huber_of_quantiles, implicit, middles, stepped
from parity_tests.reference.images import moved, reader, shape_of, shown
from shared.data.transitions import Batch


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Runs in double precision, because differently written densities would differ in single precision's last bits."""
    with both_in("float64"):
        yield


def networks(config: Any) -> tuple[nn.Module, ...]:
    """The policy, with means before log-deviations, and both critics, in the order in which they are drawn."""
    width, (eyes, features) = config.hidden_dim, reader(config.encoder)
    policy = nn.Sequential(eyes, mlp(features, width, width, 2 * ACTION_DIM))
    return policy, critic(config), critic(config)


def critic(config: Any) -> nn.ModuleList:
    """An encoder of observations, and layers with a head for a mean or for quantiles.

    For implicit quantiles, the layers come with weights of their features, and an embedding.
    """
    eyes, features = reader(config.encoder)
    widths = features + ACTION_DIM, config.hidden_dim, config.hidden_dim
    if config.critic != "iqn":
        return nn.ModuleList([eyes, mlp(*widths, config.n_quantiles if config.critic == "qr" else 1)])
    body = mlp(*widths, end=nn.ReLU())
    q = nn.Sequential(body, nn.Linear(config.hidden_dim, 1), nn.Linear(config.embed_size, config.hidden_dim))
    return nn.ModuleList([eyes, q])


class Reference:
    """The paper's updates, from a trainer's weights; quantile critics are used as in d3rlpy."""

    def __init__(self, config: Any, trainer: Any, bound: float) -> None:
        self.config, self.bound = config, bound
        ours = trainer.actor, trainer.critic_1, trainer.critic_2
        self.policy_net, *self.critics = map(at_the_weights_of, ours, networks(config))
        self.targets = copy.deepcopy(self.critics)
        self.log_temperature = nn.Parameter(torch.tensor(0.0))
        rate = config.learning_rate
        self.policy_adam = adam(self.policy_net.parameters(), rate)
        self.temperature_adam = adam([self.log_temperature], rate)
        self.q_adam = adam([p for q in self.critics for p in q.parameters()], rate)
        # Whether errors of quantiles were below and above 1, and which critics were the smaller ones
        self.corners: set[bool] = set()
        self.chosen: set[int] = set()

    def policy(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (B, A), and their log-probabilities (B, 1)."""
        loc, log_scale = self.policy_net(s).split(ACTION_DIM, dim=-1)
        normal = Normal(loc, log_scale.clip(-20, 2).exp())
        squashed = Independent(TransformedDistribution(normal, TanhTransform(cache_size=1), validate_args=False), 1)
        sample = squashed.rsample()
        return self.bound * sample, squashed.log_prob(sample)[:, None]

    def quantiles(self, critic: Any, s: Tensor, a: Tensor, learns: bool = True) -> tuple[Tensor, Tensor]:
        """Quantiles of actions (B, A) and their fractions, (B, K) each; implicit ones learn at random fractions."""
        c, (eyes, q) = self.config, critic
        inputs = torch.cat([eyes(s), a], dim=-1)
        if c.critic != "iqn":
            z = q(inputs)
            return z, middles(z.shape[1]).repeat(len(s), 1)
        even = torch.linspace(0, 1, c.n_greedy_quantiles).repeat(len(s), 1)
        t = torch.rand(len(s), c.n_quantiles) if learns else even
        return implicit(q, inputs, t).squeeze(2), t

    def target(self, s2: Tensor, r: Tensor, d: Tensor, temperature: Tensor) -> Tensor:
        """The target: all quantiles (B, K) of the critic with the smaller mean, each with the entropy bonus."""
        a2, log_pi2 = self.policy(s2)
        both = torch.stack([self.quantiles(q, s2, a2)[0] for q in self.targets])
        smaller = both.mean(2).argmin(0)
        self.chosen |= set(smaller.tolist())
        soft_value = both[smaller, torch.arange(len(s2))] - temperature * log_pi2
        return r + self.config.discount * (1 - d) * soft_value

    def loss(self, z: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """A critic's loss for quantiles (B, K) at their fractions, against targets (B, K')."""
        if self.config.critic == "mean":
            return mse_loss(z, y)
        u = y[:, :, None] - z[:, None, :]
        self.corners |= set((u.detach().abs() < 1).flatten().tolist())
        return huber_of_quantiles(u, t).mean()

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """Steps of the critics, the policy with the new critics, the temperature and the targets."""
        temperature = self.log_temperature.exp().detach()
        if padding := self.config.crop_padding:
            s, s2 = (moved(images, padding) for images in (s, s2))
        with torch.no_grad():
            y = self.target(s2, r, d, temperature)
        values = [self.quantiles(q, s, a) for q in self.critics]
        critic_loss = sum(self.loss(z, t, y) for z, t in values)
        log = {"critic_loss": stepped(self.q_adam, critic_loss), "alpha": temperature, "q": values[0][0].mean()}
        a_pi, log_pi = self.policy(s)
        means = [self.quantiles(q, s, a_pi, learns=False)[0].mean(1, keepdim=True) for q in self.critics]
        log["actor_loss"] = stepped(self.policy_adam, (temperature * log_pi - torch.min(*means)).mean())
        entropy = -log_pi.detach()
        log["entropy"] = entropy.mean()
        # The temperature rises while the entropy is below its target, -A.
        temperature_loss = (self.log_temperature * (entropy - -float(ACTION_DIM))).mean()
        log["alpha_loss"] = stepped(self.temperature_adam, temperature_loss)
        for target, source in zip(self.targets, self.critics, strict=True):
            polyak(target, source, self.config.tau)
        return log


OTHER = {"learning_rate": 1e-2, "tau": 0.1, "discount": 0.9, "hidden_dim": 64, "batch_size": 64}
QR = OTHER | {"critic": "qr", "n_quantiles": 5}
IQN = OTHER | {"critic": "iqn", "n_quantiles": 7, "n_greedy_quantiles": 4, "embed_size": 9}
IMAGES = OTHER | {"encoder": "minatar", "hidden_dim": 20}
CASES = {"default": ({}, 1.0), "fast": (OTHER, 2.0), "qr": (QR, 2.0), "iqn": (IQN, 2.0), "images": (IMAGES, 2.0)}
CASES["cropped images, iqn"] = IMAGES | IQN | {"crop_padding": 2}, 2.0


@pytest.mark.parametrize(("settings", "bound"), CASES.values(), ids=CASES)
def test_sac(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """Logs, weights, targets, temperature and actions agree; each critic is the smaller one in some rows."""
    dataset = shown(Batch(*(column.double() for column in dataset)), settings)
    config = sac.TrainConfig(device="cpu", **settings)
    # Under these weights each critic is the smaller one in some rows, in all settings.
    torch.manual_seed(3)
    trainer = sac.create_trainer(config, shape_of(settings), ACTION_DIM, bound)
    reference = Reference(config, trainer, bound)
    six_updates(sac, config, trainer, dataset, lambda rows: reference.update(*rows), 1e-10)
    ours: tuple[Any, ...] = trainer.actor, trainer.critic_1, trainer.critic_2
    ours += trainer.critic_1_target, trainer.critic_2_target
    pairs = zip(ours, [reference.policy_net, *reference.critics, *reference.targets], strict=True)
    numbers = [both for ours, theirs in pairs for both in zip(ours.parameters(), theirs.parameters(), strict=True)]
    worst = max(
        ((mine - other).abs().max() / other.abs().max()).item()
        for mine, other in [*numbers, (trainer.log_temperature.constant, reference.log_temperature)]
    )
    print(f"furthest apart: {worst:.1e}")
    assert worst < 1e-10
    assert reference.chosen == {0, 1}
    assert reference.corners == (set() if config.critic == "mean" else {True, False})
    # Observations as an environment gives them, in single or in double precision
    seen, normal = dataset.observations[:50], torch.randn(50, ACTION_DIM)
    single = seen if seen.dtype == torch.uint8 else seen.float()
    loc, log_scale = reference.policy_net(single.to(seen)).detach().split(ACTION_DIM, dim=-1)
    explored, acted = trainer.explore(single.numpy(), normal.numpy()), trainer.act(single.to(seen).numpy())
    torch.testing.assert_close(torch.as_tensor(explored), bound * torch.tanh(loc + normal * log_scale.exp()))
    torch.testing.assert_close(torch.as_tensor(acted), bound * torch.tanh(loc))


def test_draws_of_steps_are_numpys_own() -> None:
    """Uniform actions are drawn before normal noise."""
    np.random.seed(3)
    found = sac.draw_exploration(1000, ACTION_DIM)
    np.random.seed(3)
    np.testing.assert_array_equal(found.uniform, 2.0 * np.random.random((1000, ACTION_DIM)) - 1.0)
    np.testing.assert_array_equal(found.normal, np.random.normal(size=(1000, ACTION_DIM)))


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """Its logarithm is between -20 and 2."""
    actor = sac.Actor(STATE_DIM, ACTION_DIM, 1.0, "none", 64)
    actor.net[4].weight.data.mul_(300.0)
    states = dataset.observations[:500].double()
    free = actor.net(states)[:, ACTION_DIM:]
    assert free.min() < -25.0
    assert free.max() > 5.0
    assert torch.equal(actor(states)[1], free.clamp(-20.0, 2.0))


def test_the_density_adds_up_to_one() -> None:
    """The sum is over all actions of one dimension."""
    torch.manual_seed(7)
    actor = sac.Actor(1, 1, 1.0, "none", 8)
    noise = torch.linspace(-8, 8, 4001)[:, None]
    actions, log_prob = sac.sample(actor, torch.ones(len(noise), 1), noise)
    assert torch.trapezoid(log_prob.exp(), actions[:, 0]).item() == pytest.approx(1.0, abs=1e-6)


def test_the_log_probability_stays_finite_and_right_where_the_tanh_is_1() -> None:
    """There 1 - tanh(u)^2 is 0 in floating point, and its logarithm is still about -2u + ln 4."""
    actor = sac.Actor(1, 1, 1.0, "none", 8)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.zero_()
    for size in (-30.0, 30.0):
        _, log_prob = sac.sample(actor, torch.ones(1, 1), torch.tensor([[size]]))
        expected = -(size**2) / 2 - sac.LOG_SQRT_2PI - (torch.log(torch.tensor(4.0)).item() - 2 * abs(size))
        assert log_prob.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("settings", [{}, QR, IQN], ids=["mean", "qr", "iqn"])
def test_weights_start_where_the_seed_says(settings: dict[str, Any]) -> None:
    """The actor is built first, then the critics, with PyTorch's own initialisation; the temperature starts at 1."""
    config = sac.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = sac.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    assert_same_weights([trainer.actor, trainer.critic_1, trainer.critic_2], networks(config))
    assert trainer.log_temperature().item() == 0.0
