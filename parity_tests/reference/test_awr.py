"""AWR from differently arranged equations: six iterations in five settings, within 1e-9, in double precision."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.distributions import Normal
from torch.nn.functional import mse_loss, softplus

from corl_torch import awr
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_actions,
    assert_same_log,
    assert_same_weights,
    mlp,
    same_draws,
)
from shared.data.returns import EndedBatch
from shared.data.transitions import Batch

# The relative tolerance of logs and the absolute one of weights: returns are added up in another order.
LOG, WEIGHTS = 1e-9, 1e-9
FEW: dict[str, Any] = {"value_updates": 16, "actor_updates": 24}
SMALL: dict[str, Any] = {"value_hidden_dims": (40, 30), "actor_hidden_dims": (50, 20)}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": FEW,
    "no whole number of slices": SMALL
    | {"batch_size": 119, "minibatch_size": 30, "value_updates": 20, "actor_updates": 31}
    | {"value_lr": 1e-3, "actor_lr": 1e-4, "td_lambda": 0.8, "advantage_temperature": 0.3, "discount": 0.9},
    "plain advantages": SMALL | FEW | {"batch_size": 64, "minibatch_size": 16, "normalize_advantages": False},
    "one step of time": SMALL | FEW | {"batch_size": 64, "minibatch_size": 16, "td_lambda": 0.0, "max_weight": 1.5},
    "to the end": SMALL
    | FEW
    | {"batch_size": 64, "minibatch_size": 16, "td_lambda": 1.0, "advantage_temperature": 0.5},
}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Makes the rounding of sums in another order a thousand million times smaller than the sums."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def episodes_of(dataset: Batch, bound: float) -> EndedBatch:
    """The rows as episodes, some ending in a terminal and some cut, with actions both at and within their bounds."""
    cut = np.random.default_rng(1).random(ROWS) < 0.05
    cut[-1] = True
    s, a, r, s2, d = (column.double() for column in dataset)
    last = torch.as_tensor(cut).double().maximum(d)
    return EndedBatch(s, bound * (1.2 * a).clamp(-1.0, 1.0), r, s2, d, last)


class Momentum:
    """Gradient descent with momentum, written by hand."""

    def __init__(self, network: nn.Module, lr: float) -> None:
        self.parameters, self.lr = list(network.parameters()), lr
        self.velocity: list[Tensor] = []

    def step(self, loss: Tensor) -> float:
        """Makes one step and returns the loss."""
        slope = grad(loss, self.parameters)
        self.velocity = [0.9 * v + g for v, g in zip(self.velocity, slope, strict=True)] if self.velocity else [*slope]
        for parameter, velocity in zip(self.parameters, self.velocity, strict=True):
            parameter.data = parameter.data - self.lr * velocity
        return loss.item()


class Reference:
    """The iteration as in the textbook: all k-step returns of a transition, each with its weight."""

    def __init__(self, config: awr.TrainConfig, bound: float) -> None:
        self.c, self.bound = config, bound
        self.v = mlp(STATE_DIM, *config.value_hidden_dims, 1)
        trunk = mlp(STATE_DIM, *config.actor_hidden_dims, end=nn.ReLU())
        width = config.actor_hidden_dims[-1]
        self.pi = nn.ModuleList([trunk, nn.Linear(width, ACTION_DIM), nn.Linear(width, ACTION_DIM)])
        self.v_momentum, self.pi_momentum = Momentum(self.v, config.value_lr), Momentum(self.pi, config.actor_lr)
        # The branches that the batches reach
        self.reached: set[str] = set()

    def policy(self, s: Tensor) -> Normal:
        """The distribution before the tanh."""
        trunk, mean, log_std = self.pi
        encoded = trunk(s)
        raw = log_std(encoded)
        self.reached |= ({"wide"} if (raw > 2).any() else set()) | ({"narrow"} if (raw < 2).any() else set())
        return Normal(mean(encoded), raw.clamp(-20, 2).exp())

    def log_p(self, s: Tensor, a: Tensor) -> Tensor:
        """The log-probability, with d3rlpy's formula for the slope of tanh."""
        x = a / self.bound
        self.reached |= ({"below"} if (x < -0.999999).any() else set()) | ({"above"} if (x > 0.999999).any() else set())
        u = x.clamp(-0.999999, 0.999999).atanh()
        return (self.policy(s).log_prob(u) - 2 * (math.log(2) - u - softplus(-2 * u))).sum(1, keepdim=True)

    def lambda_return(self, data: EndedBatch, value: np.ndarray, t: int) -> float:
        """The lambda-return of one transition, from its n transitions to the end."""
        gamma, lam = self.c.discount, self.c.td_lambda
        n = next(k for k in range(ROWS) if data.last[t + k]) + 1
        self.reached |= {"terminal" if data.terminals[t + n - 1] else "cut", "alone" if n == 1 else "several"}
        total, earned = 0.0, 0.0
        for k in range(n):
            earned += gamma**k * float(data.rewards[t + k])
            g = earned + gamma ** (k + 1) * value[t + k] * (1 - float(data.terminals[t + k]))
            total += (lam ** (n - 1) if k == n - 1 else (1 - lam) * lam**k) * g
        return total

    def iteration(self, data: EndedBatch, indices: np.ndarray) -> dict[str, float]:
        """One iteration: returns, weights, V's steps, then the policy's steps."""
        c = self.c
        s, a = data.observations[indices], data.actions[indices]
        with torch.no_grad():
            value = self.v(data.next_observations).numpy()[:, 0]
            y = np.array([self.lambda_return(data, value, t) for t in indices])
            adv = y - self.v(s).numpy()[:, 0]
        if c.normalize_advantages:
            adv = (adv - adv.sum() / len(adv)) / (math.sqrt(np.mean(np.abs(adv - adv.mean()) ** 2)) + 1e-5)
        weight = np.exp(adv / c.advantage_temperature)
        self.reached |= ({"capped"} if (weight > c.max_weight).any() else set()) | {"free"}
        w = torch.as_tensor(np.minimum(weight, c.max_weight))[:, None]
        target = torch.as_tensor(y)[:, None]
        parts = len(indices) // c.minibatch_size
        rows = [np.arange(i * c.minibatch_size, (i + 1) * c.minibatch_size) for i in range(parts)]
        v_losses = [
            self.v_momentum.step(mse_loss(self.v(s[i]), target[i]))
            for _ in range(c.value_updates // parts)
            for i in rows
        ]
        pi_losses = [
            self.pi_momentum.step(-(w[i] * self.log_p(s[i], a[i])).mean())
            for _ in range(c.actor_updates // parts)
            for i in rows
        ]
        self.reached |= {"left out"} if len(indices) % c.minibatch_size else set()
        return {"value_loss": float(np.mean(v_losses)), "actor_loss": float(np.mean(pi_losses))}


def both(settings: dict[str, Any], bound: float) -> tuple[awr.AWR, Reference]:
    """A fresh twin and its derivation, from the same seed."""
    config = awr.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = awr.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    torch.manual_seed(7)
    return trainer, Reference(config, bound)


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_awr(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """V, the policy and both momenta are equal, with weights and deviations beyond their caps."""
    trainer, reference = both(settings, bound)
    c = reference.c
    for log_std in (trainer.actor.log_std, reference.pi[2]):
        log_std.bias.data = torch.linspace(-1.0, 2.5, ACTION_DIM)
    for last in (trainer.value.net[-1], reference.v[-1]):
        last.weight.data.mul_(20.0)
    data = episodes_of(dataset, bound)
    episodes = awr.in_episodes(data)
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = awr.draw_noise(c, ROWS, CPU)
        logs.append(trainer.update(awr.take_of(episodes, indices), noise))
    state = torch.get_rng_state()
    same_draws()
    for _ in range(UPDATES):
        expected.append(reference.iteration(data, np.random.randint(0, ROWS, size=c.batch_size)))
    assert torch.equal(state, torch.get_rng_state())
    assert_same_log(logs, expected, LOG)
    for mine, other, optimizer, momentum in (
        (trainer.value, reference.v, trainer.value_optimizer, reference.v_momentum),
        (trainer.actor, reference.pi, trainer.actor_optimizer, reference.pi_momentum),
    ):
        for a, b, velocity in zip(mine.parameters(), other.parameters(), momentum.velocity, strict=True):
            torch.testing.assert_close(a, b, rtol=WEIGHTS, atol=WEIGHTS)
            buffer = optimizer.state[a]["momentum_buffer"]
            torch.testing.assert_close(buffer, velocity, rtol=WEIGHTS, atol=WEIGHTS)
    assert trainer.total_it == UPDATES
    always = {"terminal", "cut", "alone", "several", "free", "capped", "below", "above", "wide", "narrow"}
    assert reference.reached == always | ({"left out"} if c.batch_size == 119 else set())
    found = trainer.act(data.observations.numpy())
    assert_same_actions(found, bound * torch.tanh(trainer.actor(data.observations)[0]))
    torch.testing.assert_close(
        torch.as_tensor(found), bound * reference.policy(data.observations).mean.tanh(), rtol=0.0, atol=WEIGHTS
    )


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """Its logarithm is between -20 and 2; no update is made, because it would throw such a narrow policy off."""
    trainer, reference = both({}, 1.0)
    for log_std in (trainer.actor.log_std, reference.pi[2]):
        log_std.bias.data = torch.linspace(-30.0, 5.0, ACTION_DIM)
    s, a = dataset.observations.double(), dataset.actions.double()
    mean, std = trainer.actor(s)
    expected = reference.policy(s)
    torch.testing.assert_close(mean, expected.mean, rtol=WEIGHTS, atol=WEIGHTS)
    torch.testing.assert_close(std, expected.stddev, rtol=WEIGHTS, atol=0.0)
    assert std.min().item() == pytest.approx(math.exp(-20.0))
    assert std.max().item() == pytest.approx(math.exp(2.0))
    torch.testing.assert_close(
        awr.log_prob(trainer.actor, s, a), reference.log_p(s, a)[:, 0], rtol=WEIGHTS, atol=WEIGHTS
    )


def test_weights_start_where_the_seed_says() -> None:
    """V is first, then the policy: layers, mean, deviation."""
    trainer, reference = both({}, 1.0)
    assert_same_weights([trainer.value, trainer.actor], [reference.v, reference.pi])
