"""SAC: six updates, equal to rounding in double precision."""

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
from parity_tests.precision import both_in
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    adam,
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


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """The densities are written differently on both sides, so that single precision would differ in its last bits."""
    with both_in("float64"):
        yield


def networks(width: int) -> tuple[nn.Sequential, ...]:
    """The policy, means before logarithms of deviations, and both critics, in the order in which they are drawn."""
    critic = STATE_DIM + ACTION_DIM, width, width, 1
    return mlp(STATE_DIM, width, width, 2 * ACTION_DIM), mlp(*critic), mlp(*critic)


OTHER = {"learning_rate": 1e-2, "tau": 0.1, "discount": 0.9, "hidden_dim": 64, "batch_size": 64}


@pytest.mark.parametrize(("settings", "bound"), [({}, 1.0), (OTHER, 2.0)], ids=["default", "fast"])
def test_sac(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """The critics; the policy on the new ones; the temperature; the targets."""
    dataset = Batch(*(column.double() for column in dataset))
    config = sac.TrainConfig(device="cpu", **settings)
    trainer = sac.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    ours = trainer.actor, trainer.critic_1, trainer.critic_2
    policy_net, q1, q2 = map(at_the_weights_of, ours, networks(config.hidden_dim))
    q1_t, q2_t = copy.deepcopy((q1, q2))
    log_temperature = nn.Parameter(torch.tensor(0.0))
    rate = config.learning_rate
    policy_adam, temperature_adam = adam(policy_net.parameters(), rate), adam([log_temperature], rate)
    q_adam = adam([*q1.parameters(), *q2.parameters()], rate)

    def policy(s: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_scale = policy_net(s).split(ACTION_DIM, dim=-1)
        normal = Normal(loc, log_scale.clip(-20, 2).exp())
        squashed = Independent(TransformedDistribution(normal, TanhTransform(cache_size=1), validate_args=False), 1)
        sample = squashed.rsample()
        return bound * sample, squashed.log_prob(sample)[:, None]

    def smaller(first: nn.Module, second: nn.Module, s: Tensor, a: Tensor) -> Tensor:
        inputs = torch.cat([s, a], dim=-1)
        return torch.min(first(inputs), second(inputs))

    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = sac.draw_noise(config, ROWS, ACTION_DIM, CPU)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    for _ in range(UPDATES):
        s, a, r, s2, d = columns_of(dataset, config.batch_size)
        temperature = log_temperature.exp().detach()
        with torch.no_grad():
            a2, log_pi2 = policy(s2)
            soft_value = smaller(q1_t, q2_t, s2, a2) - temperature * log_pi2
            y = r + config.discount * (1 - d) * soft_value
        inputs = torch.cat([s, a], dim=-1)
        critic_loss = mse_loss(q1(inputs), y) + mse_loss(q2(inputs), y)
        log = {"critic_loss": critic_loss, "alpha": temperature, "q": q1(inputs).mean()}
        q_adam.zero_grad()
        critic_loss.backward()
        q_adam.step()
        a_pi, log_pi = policy(s)
        policy_loss = (temperature * log_pi - smaller(q1, q2, s, a_pi)).mean()
        policy_adam.zero_grad()
        policy_loss.backward()
        policy_adam.step()
        entropy = -log_pi.detach()
        temperature_adam.zero_grad()
        # Up while the entropy is below its target, -A.
        temperature_loss = (log_temperature * (entropy - -float(ACTION_DIM))).mean()
        temperature_loss.backward()
        temperature_adam.step()
        expected.append(log | {"actor_loss": policy_loss, "entropy": entropy.mean(), "alpha_loss": temperature_loss})
        polyak(q1_t, q1, config.tau)
        polyak(q2_t, q2, config.tau)
    assert_same_log(logs, expected, tolerance=1e-10)
    pairs = [(trainer.actor.net, policy_net), (trainer.critic_1.net, q1), (trainer.critic_2.net, q2)]
    pairs += [(trainer.critic_1_target.net, q1_t), (trainer.critic_2_target.net, q2_t)]
    numbers = [both for ours, theirs in pairs for both in zip(ours.parameters(), theirs.parameters(), strict=True)]
    worst = max(
        ((mine - other).abs().max() / other.abs().max()).item()
        for mine, other in [*numbers, (trainer.log_alpha.constant, log_temperature)]
    )
    print(f"furthest apart: {worst:.1e}")
    assert worst < 1e-10
    assert trainer.total_it == UPDATES
    # As an environment gives them, in single precision or in double
    states, normal = dataset.observations[:50].float().double(), torch.randn(50, ACTION_DIM)
    loc, log_scale = policy_net(states).detach().split(ACTION_DIM, dim=-1)
    explored, acted = trainer.explore(states.float().numpy(), normal.numpy()), trainer.act(states.numpy())
    torch.testing.assert_close(torch.as_tensor(explored), bound * torch.tanh(loc + normal * log_scale.exp()))
    torch.testing.assert_close(torch.as_tensor(acted), bound * torch.tanh(loc))


def test_draws_of_steps_are_numpys_own() -> None:
    """Uniform actions before normal noise."""
    np.random.seed(3)
    found = sac.draw_exploration(1000, ACTION_DIM)
    np.random.seed(3)
    np.testing.assert_array_equal(found.uniform, 2.0 * np.random.random((1000, ACTION_DIM)) - 1.0)
    np.testing.assert_array_equal(found.normal, np.random.normal(size=(1000, ACTION_DIM)))


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """The logarithm lies between -20 and 2."""
    actor = sac.Actor(STATE_DIM, ACTION_DIM, 1.0, 64)
    actor.net[4].weight.data.mul_(300.0)
    states = dataset.observations[:500].double()
    free = actor.net(states)[:, ACTION_DIM:]
    assert free.min() < -25.0
    assert free.max() > 5.0
    assert torch.equal(actor(states)[1], free.clamp(-20.0, 2.0))


def test_the_density_adds_up_to_one() -> None:
    """Over all actions of one dimension."""
    torch.manual_seed(7)
    actor = sac.Actor(1, 1, 1.0, 8)
    noise = torch.linspace(-8, 8, 4001)[:, None]
    actions, log_prob = sac.sample(actor, torch.ones(len(noise), 1), noise)
    assert torch.trapezoid(log_prob.exp(), actions[:, 0]).item() == pytest.approx(1.0, abs=1e-6)


def test_the_log_probability_stays_finite_and_right_where_the_tanh_is_1() -> None:
    """There 1 - tanh(u)^2 is 0 in floating point, and its logarithm is still about -2u + ln 4."""
    actor = sac.Actor(1, 1, 1.0, 8)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.zero_()
    for size in (-30.0, 30.0):
        _, log_prob = sac.sample(actor, torch.ones(1, 1), torch.tensor([[size]]))
        expected = -(size**2) / 2 - sac.LOG_SQRT_2PI - (torch.log(torch.tensor(4.0)).item() - 2 * abs(size))
        assert log_prob.item() == pytest.approx(expected, rel=1e-12)


def test_weights_start_where_the_seed_says() -> None:
    """The actor is built first, then the critics, with PyTorch's own initialisation; the temperature starts at 1."""
    torch.manual_seed(7)
    trainer = sac.create_trainer(sac.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    assert_same_weights([trainer.actor, trainer.critic_1, trainer.critic_2], networks(256))
    assert trainer.log_alpha().item() == 0.0
